//! Reads the columns of a row.

use oarlock_core::{Error, Result};
use tokio_postgres::Row;
use tokio_postgres::types::FromSqlOwned;

use crate::postgres::error::{STORE, failed};
use crate::row::columns;

fn get<T: FromSqlOwned>(row: &Row, column: &str) -> Result<Option<T>> {
    row.try_get(column).map_err(failed).map_err(Error::applied_unknown)
}

columns!(Row, STORE, "stored", get);
