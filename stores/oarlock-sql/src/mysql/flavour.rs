//! Where `MySQL` and `MariaDB` differ for this crate. What differs in a procedure is in a comment there that one of
//! them reads: `/*M! */`.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Row};

use crate::mysql::error::DOUBT;

/// What a client asks again for at most, when it had to count who was killed: each time for all that were in doubt.
const DOUBTS: u32 = 8;

/// Which of the two servers it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    MariaDb,
    MySql,
}

impl Flavour {
    /// The server that gives itself this version.
    pub(crate) fn of(version: &str) -> Self {
        if version.contains("MariaDB") { Self::MariaDb } else { Self::MySql }
    }

    /// How many times a connection was killed, where the procedures cannot look for themselves.
    pub(crate) async fn kills(self, conn: &mut Conn) -> mysql_async::Result<Option<u64>> {
        if self == Self::MariaDb {
            return Ok(None);
        }
        let counted: Option<(String, u64)> = conn.query_first("SHOW GLOBAL STATUS LIKE 'Com_kill'").await?;
        Ok(counted.map(|(_, kills)| kills))
    }

    /// Asks, and asks again once it has counted who was killed, if the procedure cannot tell without it whether a
    /// session is over.
    pub(crate) async fn query(self, conn: &mut Conn, sql: &str, params: Params) -> mysql_async::Result<Vec<Row>> {
        let mut answer = conn.exec(sql, params.clone()).await;
        let mut asked = 0;
        while asked < DOUBTS && matches!(&answer, Err(mysql_async::Error::Server(told)) if told.state == DOUBT) {
            asked += 1;
            // Their connections were found gone before this.
            let kills = self.kills(conn).await?;
            conn.exec_drop(WEIGH, (kills,)).await?;
            answer = conn.exec(sql, params.clone()).await;
        }
        if asked > 0 && answer.is_ok() {
            // By the next request they may be there again, and be killed.
            conn.query_drop(FORGET).await?;
        }
        answer
    }
}

const WEIGH: &str =
    "SET @oarlock_dark = CONCAT_WS(',', @oarlock_dark, @oarlock_doubt), @oarlock_doubt = NULL, @oarlock_kills = ?";

const FORGET: &str = "SET @oarlock_dark = NULL, @oarlock_doubt = NULL, @oarlock_kills = NULL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_are_told_apart() {
        assert_eq!(Flavour::of("10.11.14-MariaDB-0+deb12u2"), Flavour::MariaDb);
        assert_eq!(Flavour::of("5.5.5-11.8.2-MariaDB"), Flavour::MariaDb);
        assert_eq!(Flavour::of("9.7.4-2"), Flavour::MySql);
    }
}
