//! Reads the columns of a row.

use mysql_async::Row;
use mysql_async::prelude::FromValue;
use oarlock_core::Result;

use crate::mysql::error::STORE;
use crate::row::columns;

fn get<T: FromValue>(row: &Row, column: &str) -> Result<Option<T>> {
    row.get_opt(column)
        .ok_or_else(|| STORE.unexpected(format!("a reply without the column {column}")))?
        .map_err(|error| STORE.unexpected(format!("unexpected value in the column {column}")).because(error))
}

columns!(Row, STORE, "limits", get);
