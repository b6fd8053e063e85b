//! Whether a pooler is in between, which gives the next request to another process of the server; and requests whose
//! answer is known to be theirs, also behind one.

use oarlock_core::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_postgres::Client;
use tokio_postgres::types::{FromSql, Type};

use crate::postgres::error::{STORE, failed, not_ours};
use crate::postgres::tls::AsIs;

/// How a request to cancel begins: its length and its code. The number of a process and a secret follow.
const CANCEL: [u8; 8] = [0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e];

/// A question whether to encrypt.
const ENCRYPT: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Whether the server's process at the other end is ours alone. A pooler does not know yet which one will serve us when
/// it hands out the key for cancelling requests, so the key names another process than the one that answers.
pub(crate) async fn is_our_own(client: &Client) -> Result<bool> {
    let (mut heard, said) = tokio::io::duplex(ENCRYPT.len() + CANCEL.len() + 8);
    let unheard = |error| STORE.unexpected("no key").because(error);
    // The client crate does not show its key, but writes it to any stream; where it encrypts, it asks for that
    // first. Nothing of it leaves this process.
    heard.write_all(b"S").await.map_err(unheard)?;
    client.cancel_token().cancel_query_raw(said, AsIs).await.map_err(failed)?;
    let mut request = Vec::with_capacity(ENCRYPT.len() + CANCEL.len() + 8);
    heard.read_to_end(&mut request).await.map_err(unheard)?;
    let request = request.strip_prefix(&ENCRYPT).unwrap_or(&request);
    let key = request.strip_prefix(&CANCEL).and_then(|key| key.first_chunk()).map(|pid| i32::from_be_bytes(*pid));
    Ok(key == Some(first(client, "SELECT pg_backend_pid(), $1::bigint AS echo").await?))
}

/// What is in the first row of the answer to `sql`, if it is the answer to this very request: before we know that there
/// is no pooler in between, it may be another's.
pub(crate) async fn first<T: for<'a> FromSql<'a>>(client: &Client, sql: &str) -> Result<T> {
    let number = STORE.random_number()?;
    let rows = client.query_typed(sql, &[(&number, Type::INT8)]).await.map_err(failed)?;
    let ours = rows.first().filter(|row| row.try_get::<_, i64>("echo").is_ok_and(|echo| echo == number));
    ours.ok_or_else(not_ours)?.try_get(0).map_err(failed)
}
