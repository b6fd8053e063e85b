//! Reads the columns of a row.

use oarlock_core::{Error, Result};
use tokio_postgres::Row;
use tokio_postgres::types::FromSqlOwned;

use crate::error::Store;
use crate::postgres::error::{STORE, failed};
use crate::row;

fn get<T: FromSqlOwned>(row: &Row, column: &str) -> Result<Option<T>> {
    row.try_get(column).map_err(failed).map_err(Error::applied_unknown)
}

impl row::Row for Row {
    const STORE: Store = STORE;
    const CAPACITY: &'static str = "stored";

    fn integer(&self, column: &str) -> Result<Option<i64>> {
        get(self, column)
    }

    fn boolean(&self, column: &str) -> Result<Option<bool>> {
        get(self, column)
    }

    fn text(&self, column: &str) -> Result<Option<String>> {
        get(self, column)
    }

    fn bytes(&self, column: &str) -> Result<Option<Vec<u8>>> {
        get(self, column)
    }
}
