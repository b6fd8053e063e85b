//! Reads the columns of a row.

use mysql_async::Row;
use mysql_async::prelude::FromValue;
use oarlock_core::Result;

use crate::error::Store;
use crate::mysql::error::STORE;
use crate::row;

fn get<T: FromValue>(row: &Row, column: &str) -> Result<Option<T>> {
    row.get_opt(column)
        .ok_or_else(|| STORE.unexpected(format!("a reply without the column {column}")))?
        .map_err(|error| STORE.unexpected(format!("unexpected value in the column {column}")).because(error))
}

impl row::Row for Row {
    const STORE: Store = STORE;
    const CAPACITY: &'static str = "limits";

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
