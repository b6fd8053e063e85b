//! The advisory locks of databases, as programs take them: a session for each lock, and one statement for each step.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use tokio_postgres::NoTls;

use crate::bound;
use crate::peer::{Client, Lock, Loss, Refusal};

/// `pg_advisory_lock`.
pub struct Postgres(pub String);

impl Client for Postgres {
    type Lock = PostgresLock;

    fn version(&self) -> String {
        "tokio-postgres".to_owned()
    }

    async fn lock(&self, _: &str, name: &str) -> Result<PostgresLock, Refusal> {
        let (client, connection) = tokio_postgres::connect(&self.0, NoTls).await?;
        tokio::spawn(connection);
        let lock = client.prepare("SELECT pg_advisory_lock(hashtextextended($1, 0))").await?;
        let unlock = client.prepare("SELECT pg_advisory_unlock(hashtextextended($1, 0))").await?;
        Ok(PostgresLock { client, lock, unlock, name: name.to_owned() })
    }
}

pub struct PostgresLock {
    client: tokio_postgres::Client,
    lock: tokio_postgres::Statement,
    unlock: tokio_postgres::Statement,
    name: String,
}

impl Lock for PostgresLock {
    async fn acquire(&mut self, _: Duration, wait: Duration, _: bool) -> Result<bool, Refusal> {
        tokio::time::timeout(bound(wait), self.client.query_one(&self.lock, &[&self.name])).await??;
        Ok(true)
    }

    async fn release(&mut self) -> Result<Option<Loss>, Refusal> {
        let freed: bool = self.client.query_one(&self.unlock, &[&self.name]).await?.get(0);
        Ok((!freed).then(|| "the session does not hold it".to_owned()))
    }
}

/// `GET_LOCK`.
pub struct Mysql(pub String);

impl Client for Mysql {
    type Lock = MysqlLock;

    fn version(&self) -> String {
        "mysql_async".to_owned()
    }

    async fn lock(&self, _: &str, name: &str) -> Result<MysqlLock, Refusal> {
        let url = self.0.replacen("mariadb://", "mysql://", 1);
        let mut connection = mysql_async::Conn::from_url(url).await?;
        let lock = connection.prep("SELECT GET_LOCK(?, ?)").await?;
        let unlock = connection.prep("SELECT RELEASE_LOCK(?)").await?;
        Ok(MysqlLock { connection, lock, unlock, name: name.to_owned() })
    }
}

pub struct MysqlLock {
    connection: mysql_async::Conn,
    lock: mysql_async::Statement,
    unlock: mysql_async::Statement,
    name: String,
}

impl Lock for MysqlLock {
    async fn acquire(&mut self, _: Duration, wait: Duration, _: bool) -> Result<bool, Refusal> {
        let granted = self.connection.exec_first(&self.lock, (&self.name, bound(wait).as_secs())).await?;
        Ok(granted == Some(1))
    }

    async fn release(&mut self) -> Result<Option<Loss>, Refusal> {
        let freed: Option<Option<i64>> = self.connection.exec_first(&self.unlock, (&self.name,)).await?;
        Ok((freed != Some(Some(1))).then(|| "the session does not hold it".to_owned()))
    }
}
