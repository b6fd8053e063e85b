//! Forgets reservations that ended long ago.

use std::time::Duration;

use oarlock_rows::Classify as _;

use super::steps::{self, Conn};
use super::{Sql, Then, begin, end, schema};
use crate::Error;
use crate::stock::{Stock, finished, named};

/// How many reservations one call forgets.
const PURGED: usize = 500;

/// The reservation that stands for all that were sold and forgotten: no order can have this id.
const FORGOTTEN: &str = "";

impl<C: Conn + 'static> Stock<Sql<C>> {
    /// Forgets reservations that were sold or given back longer than `age` ago, a few hundred at a time, and says how
    /// many. The units stay counted as sold. Call it now and then, from anywhere, until it says 0.
    ///
    /// **An order that is retried under an id that was forgotten takes again**: choose an age that no retry reaches.
    /// Deliveries are not forgotten. Reservations that ended before this version of the library ended them, and had no
    /// `hold`, stay until [`remove`](Stock::remove).
    ///
    /// # Errors
    /// The store's own.
    pub async fn purge(&self, sku: &str, age: Duration) -> Result<u64, Error> {
        let sku = named(sku)?;
        let mut turn = self.turn().await?;
        finished(async move {
            let purged = turn.shelf()?.purge(&sku, age).await;
            turn.ends(&purged);
            purged
        })
        .await
    }
}

impl<C: Conn> Sql<C> {
    async fn purge(&mut self, sku: &str, age: Duration) -> Result<u64, Error> {
        let now = schema::now(self.conn.dialect());
        let columns = schema::joined(self.conn.dialect(), &["quantity", "state", "id"]);
        let old = format!(
            "select {columns} from oarlock_stock_reservation where sku = ? and state in ('s', 'r') \
             and expires <= {now} - ? order by id limit {PURGED}{}",
            schema::for_update(self.conn.dialect())
        );
        let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX).min(1 << 50);
        let Self { conn, retry, .. } = self;
        let mut attempts = retry.begin();
        loop {
            let result = match begin(conn).await {
                Ok(()) => {
                    let result = forget(conn, &old, sku, age).await;
                    end(conn, result).await
                }
                Err(error) => Err(error),
            };
            let error = match result {
                Ok(count) => return Ok(count),
                Err(error) => error,
            };
            match attempts.after(error.contention()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(error),
            }
        }
    }
}

async fn forget<C: Conn>(conn: &mut C, old: &str, sku: &str, age: u64) -> Result<Then<u64>, Error> {
    let (mut count, mut sold) = (0, 0);
    for text in steps::texts(conn, old, &[sku.into(), age.into()]).await? {
        let mut parts = text.splitn(3, ' ');
        let mut part = || parts.next().ok_or_else(|| Error::answer(&text));
        let ([quantity], state, id) = (steps::numbers(part()?)?, part()?, part()?);
        let sql = "delete from oarlock_stock_reservation where sku = ? and id = ? and state = ?";
        if steps::execute(conn, sql, &[sku.into(), id.into(), state.into()]).await? == 1 {
            count += 1;
            sold += if state == "s" { quantity } else { 0 };
        }
    }
    if sold > 0 {
        let row = "oarlock_stock_reservation (id, sku, segment, quantity, state) values (?, ?, 0, 0, 's')";
        let sql = schema::insert_new(conn.dialect(), row);
        steps::execute(conn, &sql, &[FORGOTTEN.into(), sku.into()]).await?;
        let sql = "update oarlock_stock_reservation set quantity = quantity + ? where sku = ? and id = ?";
        if steps::execute(conn, sql, &[sold.into(), sku.into(), FORGOTTEN.into()]).await? != 1 {
            return Err(Error::answer("a row that was inserted is not there"));
        }
    }
    Ok(Then::Keep(count))
}
