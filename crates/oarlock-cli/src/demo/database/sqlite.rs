//! Rows in a SQLite file of this machine, for stores that have no rows.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::Duration;

use oarlock_rows::sqlite::Row;
use oarlock_stock::Sql;
use rusqlite::Connection;

use super::{Database, Decide, PATIENCE, Rows, Shelves, locked, own_name};
use crate::demo::trouble::Boxed;

#[derive(Clone)]
pub(crate) struct Lite {
    folder: PathBuf,
}

impl Lite {
    pub(crate) fn make() -> Result<Self, Boxed> {
        let folder = std::env::temp_dir().join(own_name());
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self { folder })
    }

    fn open(&self) -> Result<Connection, Boxed> {
        let connection = Connection::open(self.folder.join("shop.db"))?;
        connection.busy_timeout(PATIENCE.min(Duration::from_secs(30)))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        Ok(connection)
    }
}

impl Shelves for Lite {
    type Shelf = Sql<Connection>;

    fn what(&self) -> String {
        "SQLite, in a file of this machine".to_owned()
    }

    async fn shelf(&self) -> Result<Self::Shelf, Boxed> {
        Ok(Sql::new(self.open()?))
    }
}

impl Database for Lite {
    type Conn = Connection;

    async fn connect(&self) -> Result<Connection, Boxed> {
        self.open()
    }

    async fn clear(&self) -> Result<(), Boxed> {
        Ok(std::fs::remove_dir_all(&self.folder)?)
    }

    fn number(row: &Row, column: &str) -> Option<i64> {
        row.integer(column)
    }

    async fn locked(conn: &mut Connection, rows: &Rows<'_>, decide: Decide<'_>) -> Result<u32, Boxed> {
        locked!(sqlite, conn, rows, decide)
    }
}
