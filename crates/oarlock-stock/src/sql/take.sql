-- Takes all of an order from one segment of MySQL or MariaDB: one round trip, one transaction.
-- Keys: oarlock_stock_reservation by sku and id; oarlock_stock_segment by sku and segment.
-- Arguments: sku, id, segment, quantity, for how many milliseconds it is held (null: for good).
-- Answer: taken; short, and nothing has changed; or segment, quantity and state of the reservation that has the id.
create procedure if not exists oarlock_stock_take(
    _sku varbinary(190), _id varbinary(190), _segment bigint, _quantity bigint, _hold bigint
) modifies sql data sql security invoker
begin
    declare _now bigint default cast(unix_timestamp(now(3)) * 1000 as signed);
    declare exit handler for sqlexception
    begin
        rollback;
        resignal;
    end;
    start transaction;
    -- The reservation first: the segment is the row that others want, and is locked for as short as can be.
    insert ignore into oarlock_stock_reservation (sku, id, segment, quantity, state, expires)
    values (_sku, _id, _segment, _quantity, 'h', _now + _hold);
    if row_count() = 1 then
        update oarlock_stock_segment set available = available - _quantity
        where sku = _sku and segment = _segment and available >= _quantity;
        if row_count() = 1 then
            commit;
            select 'taken';
        else
            rollback;
            select 'short';
        end if;
    else
        select concat(segment, ' ', quantity, ' ', state) from oarlock_stock_reservation where sku = _sku and id = _id;
        rollback;
    end if;
end
