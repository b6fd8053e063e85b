//! Rows in a schema of PostgreSQL that the demo makes for itself.

use oarlock::url::Url;
use oarlock_rows::postgres::Cached;
use oarlock_stock::Sql;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls, Row};

use super::{Database, Decide, Rows, Shelves, locked, own_name};
use crate::demo::trouble::Boxed;
use crate::exit::{Code, Failure};

#[derive(Clone)]
pub(crate) struct Pg {
    config: Config,
    schema: String,
    address: String,
}

impl Pg {
    pub(crate) async fn make(url: &Url) -> Result<Self, Failure> {
        if !matches!(url.option("sslmode"), None | Some("disable" | "prefer")) {
            return Err(Failure::new(Code::Config, "the demos speak to PostgreSQL without encryption only"));
        }
        let [host] = url.hosts() else { return Err(Failure::new(Code::Config, "the demos take one host")) };
        let (schema, mut config) = (own_name(), Config::new());
        config.host(&host.name).port(host.port).application_name("oarlock demo").ssl_mode(SslMode::Disable);
        config.connect_timeout(url.connect_timeout()).options(format!("-c search_path={schema}"));
        if let Some(user) = url.user() {
            config.user(user);
        }
        if let Some(password) = url.password()? {
            config.password(password.reveal());
        }
        let database = url.path().trim_start_matches('/');
        if !database.is_empty() {
            config.dbname(database);
        }
        let database = Self { config, schema, address: host.to_string() };
        let made =
            async { Ok(database.open().await?.batch_execute(&format!("create schema {}", database.schema)).await?) };
        made.await.map_err(|error| crate::demo::trouble::failure(&error))?;
        Ok(database)
    }

    async fn open(&self) -> Result<Client, Boxed> {
        let (client, connection) = self.config.connect(NoTls).await?;
        // Ends with the client.
        tokio::spawn(connection);
        Ok(client)
    }
}

impl Shelves for Pg {
    type Shelf = Sql<Cached>;

    fn what(&self) -> String {
        format!("PostgreSQL at {}", self.address)
    }

    async fn shelf(&self) -> Result<Self::Shelf, Boxed> {
        Ok(Sql::new(Cached::new(self.open().await?)))
    }
}

impl Database for Pg {
    type Conn = Client;

    async fn connect(&self) -> Result<Client, Boxed> {
        self.open().await
    }

    async fn clear(&self) -> Result<(), Boxed> {
        Ok(self.open().await?.batch_execute(&format!("drop schema {} cascade", self.schema)).await?)
    }

    fn number(row: &Row, column: &str) -> Option<i64> {
        row.try_get(column).ok()
    }

    async fn locked(conn: &mut Client, rows: &Rows<'_>, decide: Decide<'_>) -> Result<u32, Boxed> {
        locked!(postgres, conn, rows, decide)
    }
}
