//! Hostile bytes for what this crate reads: rows that another program wrote, and the notifications of PostgreSQL, which
//! every role of the database can send.

use std::path::Path;

use oarlock_core::state::Query;
use oarlock_core::{Claim, ClaimId, ResourceName, Result};
use oarlock_fuzz::{Seen, fuzz};

use crate::error::Store;
use crate::row::Row;
use crate::{attempt, inspect};

fn corpus(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// A row of `column=value` lines; what is not there is NULL.
struct HostileRow(Vec<(String, Vec<u8>)>);

impl HostileRow {
    fn of(input: &[u8]) -> Self {
        let pair = |line: &[u8]| {
            let at = line.iter().position(|byte| *byte == b'=')?;
            Some((String::from_utf8_lossy(&line[..at]).into_owned(), line[at + 1..].to_vec()))
        };
        Self(input.split(|byte| *byte == b'\n').filter_map(pair).collect())
    }

    fn get(&self, column: &str) -> Option<&[u8]> {
        self.0.iter().find(|(name, _)| name == column).map(|(_, value)| &**value)
    }
}

impl Row for HostileRow {
    const STORE: Store = Store("postgres");
    const CAPACITY: &'static str = "capacity";

    fn integer(&self, column: &str) -> Result<Option<i64>> {
        let text = self.text(column)?;
        text.map(|text| text.parse().map_err(|_| Self::STORE.unexpected("no number"))).transpose()
    }

    fn boolean(&self, column: &str) -> Result<Option<bool>> {
        Ok(self.get(column).map(|value| value == b"true"))
    }

    fn text(&self, column: &str) -> Result<Option<String>> {
        Ok(self.get(column).map(|value| String::from_utf8_lossy(value).into_owned()))
    }

    fn bytes(&self, column: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.get(column).map(<[u8]>::to_vec))
    }
}

#[test]
fn fuzz_row() {
    let words =
        ["\nname=", "\nid=", "\nkind=", "\nweight=", "\nlabel={}", "\nfence=", "\nage=", "\nleft_over=", "\nvalue="];
    let more =
        ["\nending=", "\nbehind=", "\ncapacity=", "\nlast_fence=", "\nmemo=", "\nlease=", "\nahead=", "\nsession="];
    let words = [&words[..], &more[..]].concat();
    let name = ResourceName::new("r").unwrap();
    let claim = Claim::new(ClaimId::from_bits(1), name.clone());
    fuzz("row", &corpus("row"), &[], &words, |input| {
        let row = HostileRow::of(input);
        let granted = attempt::granted(&row);
        if let Ok(grant) = &granted {
            assert!(row.get("fence").is_some() && row.get("lease").is_some(), "{grant:?}");
        }
        let mut outcome = format!("{:?}", granted.map(|grant| grant.memo.is_some()).map_err(|error| error.to_string()));
        outcome += &format!("{:?}", attempt::pending(&row).map(|pending| pending.ahead.is_some()).ok());
        outcome += &attempt::refused(&row, "spec", &claim).to_string();
        for query in [Query::name(name.clone()), Query::live()] {
            let page = inspect::page([HostileRow::of(input)], &query, "", |_| false);
            outcome += &format!("{:?}", page.map(|page| page.resources.len()).map_err(|error| error.to_string()));
        }
        Seen::text(&outcome)
    });
}

#[cfg(feature = "postgres")]
#[test]
fn fuzz_notification() {
    let words = ["000102030405060708090a0b0c0d0e0f", " 7 5 2", " 6100ff"];
    fuzz("notification", &corpus("notification"), &[], &words, |input| {
        let text = String::from_utf8_lossy(input);
        let read = crate::postgres::notification::Notification::read(&text);
        // A notification is about a claim only if it begins with an id, and grants only with three numbers after it.
        let parts = text.split(' ').count();
        assert!(read.as_ref().is_none_or(|it| text.starts_with(&it.id.to_string()) || text.len() >= 32));
        assert!(read.as_ref().is_none_or(|it| it.grant.is_none() || parts == 4 || parts == 5), "{text:?}");
        Seen::of((read.map(|notification| notification.grant.is_some()), parts.min(8)))
    });
}
