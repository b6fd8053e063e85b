//! Stock inside a transaction of the caller.

use super::steps::{self, Conn};
use super::{gather, schema};
use crate::stock::{answered, checked, named};
use crate::{Error, Order, Reservation, State, Take};

/// Stock inside a transaction that the caller has begun: units and the caller's own rows change together, or not at
/// all.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use oarlock_rows::{Retry, postgres};
/// use oarlock_stock::{Order, State, Take, inside};
///
/// let order = Order { sku: "ticket".into(), id: "order 4711 line 1".into(), quantity: 2, hold: None };
/// let done = postgres::transaction(client, &Retry::default(), async |tx| {
///     if let Take::SoldOut { .. } = inside(tx)?.take(&order).await? {
///         return Ok(false);
///     }
///     // The id may be of an order that was given back meanwhile.
///     let line = inside(tx)?.confirm(&order.sku, &order.id).await?;
///     if line.is_none_or(|line| line.state != State::Sold) {
///         return Ok(false);
///     }
///     tx.execute("insert into orders (id) values ($1)", &[&order.id]).await?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(true)
/// })
/// .await;
/// # let _ = done;
/// # Ok(()) }
/// ```
///
/// # Guarantees
/// As [`Stock`](crate::Stock), once the transaction is committed. Until then other takers wait for the segment that
/// this one took from, so keep the transaction short.
///
/// # Errors
/// Let an error leave the transaction: the server may have undone what came before. A deadlock or a serialization
/// failure is not retried here, because only the caller can run the whole transaction again;
/// `oarlock_rows::postgres::transaction` and its siblings do.
#[derive(Debug)]
pub struct Inside<'a, C>(&'a mut C);

/// Stock inside the transaction `tx`. The tables must be there: [`Stock::init`](crate::Stock::init).
///
/// # Errors
/// [`Error::Invalid`] outside of a transaction: each statement would be one by itself.
pub fn inside<C: oarlock_rows::Client<Value: From<i64>> + Send>(tx: &mut C) -> Result<Inside<'_, C>, Error> {
    if !tx.in_transaction() {
        return Err(Error::Invalid("stock inside a transaction needs one: begin it first".to_owned()));
    }
    Ok(Inside(tx))
}

impl<C: Conn> Inside<'_, C> {
    /// Takes units, or says that there are too few. See [`Stock::take`](crate::Stock::take).
    ///
    /// # Errors
    /// As there.
    pub async fn take(&mut self, order: &Order) -> Result<Take, Error> {
        checked(order)?;
        let conn = &mut *self.0;
        // One segment by chance, so that takers do not meet; all of them, in order, if that has too little.
        let sql = format!(
            "select {} from oarlock_stock_item where sku = ?",
            schema::joined(conn.dialect(), &["segments", "generation"])
        );
        let text = steps::texts(conn, &sql, &[(&order.sku).into()]).await?.pop();
        let [segments, _] = steps::numbers(&text.ok_or_else(|| Error::NoSuchItem(order.sku.clone()))?)?;
        let segment = u32::try_from(fastrand::u64(..segments.max(1))).map_err(Error::store)?;
        // The reservation first: the segment is the row that others want.
        if !steps::reserve(conn, order, segment).await? {
            return answered(order, super::known(conn, order).await?);
        }
        if steps::subtract(conn, &order.sku, segment, order.quantity).await? {
            return answered(order, crate::Step::Taken);
        }
        // The transaction is the caller's: it cannot be rolled back here.
        let sql = "delete from oarlock_stock_reservation where sku = ? and id = ?";
        steps::execute(conn, sql, &[(&order.sku).into(), (&order.id).into()]).await?;
        answered(order, gather(conn, order).await?)
    }

    /// Sells what is held. See [`Stock::confirm`](crate::Stock::confirm).
    ///
    /// # Errors
    /// As there.
    pub async fn confirm(&mut self, sku: &str, id: &str) -> Result<Option<Reservation>, Error> {
        steps::settle(self.0, &named(sku)?, &named(id)?, State::Sold, false).await
    }

    /// Gives back what is held. See [`Stock::give_back`](crate::Stock::give_back).
    ///
    /// # Errors
    /// As there.
    pub async fn give_back(&mut self, sku: &str, id: &str) -> Result<Option<Reservation>, Error> {
        steps::settle(self.0, &named(sku)?, &named(id)?, State::Returned, false).await
    }
}
