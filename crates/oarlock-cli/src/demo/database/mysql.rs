//! Rows in a database of MySQL or MariaDB that the demo makes for itself.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, OptsBuilder, Row};
use oarlock::url::Url;
use oarlock_stock::Sql;

use super::{Database, Decide, Rows, Shelves, locked, own_name};
use crate::demo::trouble::Boxed;
use crate::exit::{Code, Failure};

#[derive(Clone)]
pub(crate) struct Maria {
    opts: OptsBuilder,
    database: String,
    address: String,
}

impl Maria {
    pub(crate) async fn make(url: &Url) -> Result<Self, Failure> {
        if !matches!(url.option("sslmode"), None | Some("disable")) {
            return Err(Failure::new(Code::Config, "the demos speak to MySQL and MariaDB without encryption only"));
        }
        let [host] = url.hosts() else { return Err(Failure::new(Code::Config, "the demos take one host")) };
        let opts = OptsBuilder::default()
            .ip_or_hostname(&host.name)
            .tcp_port(host.port)
            .user(Some(url.user().unwrap_or("root")))
            .pass(url.password()?.as_ref().map(oarlock::url::Secret::reveal))
            .prefer_socket(false);
        let database = Self { opts, database: own_name(), address: host.to_string() };
        let given = url.path().trim_start_matches('/');
        let made = async {
            let mut conn =
                Conn::new(database.opts.clone().db_name(Some(given).filter(|name| !name.is_empty()))).await?;
            conn.query_drop(format!("create database {}", database.database)).await?;
            Ok(())
        };
        let made = tokio::time::timeout(url.connect_timeout(), made).await;
        let made =
            made.unwrap_or_else(|_| Err(oarlock::Error::unreachable(format!("no connection to {url} in time")).into()));
        made.map_err(|error| crate::demo::trouble::failure(&error))?;
        Ok(database)
    }

    async fn open(&self) -> Result<Conn, Boxed> {
        let mut conn = Conn::new(self.opts.clone().db_name(Some(&self.database))).await?;
        conn.query_drop("set session transaction isolation level read committed").await?;
        Ok(conn)
    }
}

impl Shelves for Maria {
    type Shelf = Sql<Conn>;

    fn what(&self) -> String {
        format!("MySQL or MariaDB at {}", self.address)
    }

    async fn shelf(&self) -> Result<Self::Shelf, Boxed> {
        Ok(Sql::new(self.open().await?))
    }
}

impl Database for Maria {
    type Conn = Conn;

    async fn connect(&self) -> Result<Conn, Boxed> {
        self.open().await
    }

    async fn clear(&self) -> Result<(), Boxed> {
        Ok(self.open().await?.query_drop(format!("drop database {}", self.database)).await?)
    }

    fn number(row: &Row, column: &str) -> Option<i64> {
        row.get_opt(column)?.ok()
    }

    async fn locked(conn: &mut Conn, rows: &Rows<'_>, decide: Decide<'_>) -> Result<u32, Boxed> {
        locked!(mysql, conn, rows, decide)
    }
}
