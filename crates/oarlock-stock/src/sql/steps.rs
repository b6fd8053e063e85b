//! The steps, each for use inside a transaction or as one statement.

use oarlock_rows::{Client, Dialect};

use super::schema::{for_share, for_update, insert_new, joined, now, placed};
use crate::{Error, Order, Reservation, State};

/// What a step sends: names and whole numbers.
pub(super) enum Value<'a> {
    Text(&'a str),
    Number(i64),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

/// A connection that takes whole numbers, as all of them do.
pub trait Conn: Client<Value: From<i64>> + Send {}

impl<C: Client<Value: From<i64>> + Send> Conn for C {}

fn values<C: Conn>(values: &[Value<'_>]) -> Vec<C::Value> {
    let value = |value: &Value<'_>| match value {
        Value::Text(text) => <C::Value as From<String>>::from((*text).to_owned()),
        Value::Number(number) => <C::Value as From<i64>>::from(*number),
    };
    values.iter().map(value).collect()
}

pub(super) async fn execute<C: Conn>(conn: &mut C, sql: &str, with: &[Value<'_>]) -> Result<u64, Error> {
    let sql = placed(conn.dialect(), sql);
    conn.execute(&sql, values::<C>(with)).await.map_err(Error::store)
}

/// The last column of every row, which is text.
pub(super) async fn texts<C: Conn>(conn: &mut C, sql: &str, with: &[Value<'_>]) -> Result<Vec<String>, Error> {
    let sql = placed(conn.dialect(), sql);
    let rows = conn.rows(&sql, values::<C>(with)).await.map_err(Error::store)?;
    rows.iter().map(|row| C::last_text(row).ok_or_else(|| Error::answer("no text"))).collect()
}

/// The whole numbers in a text.
pub(super) fn numbers<const N: usize>(text: &str) -> Result<[u64; N], Error> {
    let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
    numbers.ok().and_then(|numbers| numbers.try_into().ok()).ok_or_else(|| Error::answer(text))
}

pub(super) const DELIVERED: &str = "d";

pub(super) fn letter(state: State) -> &'static str {
    match state {
        State::Held => "h",
        State::Sold => "s",
        State::Returned => "r",
    }
}

/// The columns of a reservation that [`read`] reads.
pub(super) fn reservation(dialect: Dialect) -> String {
    joined(dialect, &["segment", "quantity", "state"])
}

/// Asks what an id of an item stands for, in a text for [`read`].
pub(super) fn find_statement(dialect: Dialect) -> String {
    let columns = reservation(dialect);
    format!("select {columns} from oarlock_stock_reservation where sku = ? and id = ?")
}

/// What an id stands for, and the segment it came from, inside a transaction. The row is locked: a snapshot that the
/// transaction made before may be older than a row that an insert has met.
pub(super) async fn find<C: Conn>(conn: &mut C, sku: &str, id: &str) -> Result<Option<(Reservation, u64)>, Error> {
    let sql = format!("{}{}", find_statement(conn.dialect()), for_share(conn.dialect()));
    let found = texts(conn, &sql, &[sku.into(), id.into()]).await?.pop();
    found.map(|text| read(sku, id, &text)).transpose()
}

/// The reservation in a text, and the segment it came from.
pub(super) fn read(sku: &str, id: &str, text: &str) -> Result<(Reservation, u64), Error> {
    let mut parts = text.split(' ');
    let mut part = || parts.next().ok_or_else(|| Error::answer(text));
    let [segment] = numbers(part()?)?;
    let [quantity] = numbers(part()?)?;
    let state = match part()? {
        "h" => State::Held,
        "s" => State::Sold,
        "r" => State::Returned,
        DELIVERED => return Err(Error::Reused { id: id.to_owned() }),
        _ => return Err(Error::answer(text)),
    };
    Ok((Reservation { sku: sku.to_owned(), id: id.to_owned(), quantity, state }, segment))
}

/// Writes a reservation down, unless the id is known.
pub(super) async fn reserve<C: Conn>(conn: &mut C, order: &Order, segment: u32) -> Result<bool, Error> {
    let dialect = conn.dialect();
    let (expires, hold) = expires(dialect, order);
    let columns = "oarlock_stock_reservation (id, sku, segment, quantity, state, expires)";
    let sql = insert_new(dialect, &format!("{columns} values (?, ?, ?, ?, 'h', {expires})"));
    let mut with = vec![(&order.id).into(), (&order.sku).into(), segment.into(), order.quantity.into()];
    with.extend(hold);
    Ok(execute(conn, &sql, &with).await? == 1)
}

/// When the hold is over, as an expression, and the value in it.
pub(super) fn expires(dialect: Dialect, order: &Order) -> (String, Option<Value<'static>>) {
    match order.hold {
        None => ("null".to_owned(), None),
        Some(hold) => {
            let millis = u64::try_from(hold.as_millis()).unwrap_or(u64::MAX);
            (format!("{} + ?", now(dialect)), Some(millis.min(1 << 50).into()))
        }
    }
}

/// The segments in their order, each locked until the transaction ends.
pub(super) async fn segments<C: Conn>(conn: &mut C, sku: &str) -> Result<Vec<(u32, u64)>, Error> {
    let columns = joined(conn.dialect(), &["segment", "available"]);
    let lock = for_update(conn.dialect());
    let sql = format!("select {columns} from oarlock_stock_segment where sku = ? order by segment{lock}");
    let mut segments = Vec::new();
    for text in texts(conn, &sql, &[sku.into()]).await? {
        let [segment, available] = numbers(&text)?;
        segments.push((u32::try_from(segment).map_err(Error::store)?, available));
    }
    Ok(segments)
}

/// Changes what a segment has, and says whether it is there and would not fall below nothing.
pub(super) async fn add<C: Conn>(conn: &mut C, sku: &str, segment: u32, units: u64) -> Result<bool, Error> {
    let sql = "update oarlock_stock_segment set available = available + ? where sku = ? and segment = ?";
    Ok(execute(conn, sql, &[units.into(), sku.into(), segment.into()]).await? == 1)
}

/// Ends a hold, if it is still held, and says what the id stands for then; `over`: only if its time is up.
pub(super) async fn settle<C: Conn>(
    conn: &mut C,
    sku: &str,
    id: &str,
    end: State,
    over: bool,
) -> Result<Option<Reservation>, Error> {
    let now = now(conn.dialect());
    let time = if over { format!(" and expires <= {now}") } else { String::new() };
    // From now on it is the time at which it ended, for those that purge.
    let sql = format!(
        "update oarlock_stock_reservation set state = ?, expires = {now} where sku = ? and id = ? and state = 'h'{time}"
    );
    let ended = execute(conn, &sql, &[letter(end).into(), sku.into(), id.into()]).await? == 1;
    let Some((reservation, segment)) = find(conn, sku, id).await? else { return Ok(None) };
    if ended && end == State::Returned {
        let segment = u32::try_from(segment).map_err(Error::store)?;
        let units = reservation.quantity;
        // The segment it came from may be gone; the first one never is.
        if !add(conn, sku, segment, units).await? && !add(conn, sku, 0, units).await? {
            return Err(Error::NoSuchItem(sku.to_owned()));
        }
    }
    Ok(Some(reservation))
}

/// Takes units from a segment, if it has as many.
pub(super) async fn subtract<C: Conn>(conn: &mut C, sku: &str, segment: u32, units: u64) -> Result<bool, Error> {
    let sql = "update oarlock_stock_segment set available = available - ? \
               where sku = ? and segment = ? and available >= ?";
    Ok(execute(conn, sql, &[units.into(), sku.into(), segment.into(), units.into()]).await? == 1)
}
