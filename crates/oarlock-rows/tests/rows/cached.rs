//! Statements that are prepared once do not outlive what they were prepared for.

use oarlock_rows::postgres::Cached;
use oarlock_rows::{Client as _, Version, Versioned};

use crate::contexts::{Pg, TestContext as _, restock};

#[tokio::test]
async fn a_statement_that_no_longer_holds_is_prepared_anew() {
    let Some(context) = Pg::start().await else { return };
    let (mut cached, other) = (Cached::new(context.conn().await), context.conn().await);
    restock(&mut cached, 10).await;
    let items = Versioned::new("items", "id", Version::integer("version"));
    assert!(items.read(&mut cached, 1_i64).await.unwrap().is_some());
    let touch = "update items set stock = stock + $1 where id = 1";
    assert_eq!(cached.execute(touch, vec![1_i64.into()]).await.unwrap(), 1);

    // One more column: the answer would have another shape.
    other.batch_execute("alter table items add column colour text").await.unwrap();
    assert!(items.read(&mut cached, 1_i64).await.is_err());
    let seen = items.read(&mut cached, 1_i64).await.unwrap().unwrap();
    assert_eq!((seen.row.get::<_, i64>("stock"), seen.row.get::<_, Option<&str>>("colour")), (11, None));

    // The server has forgotten all of them.
    cached.execute("discard all", Vec::new()).await.unwrap();
    assert!(items.read(&mut cached, 1_i64).await.is_err());
    assert!(cached.execute(touch, vec![1_i64.into()]).await.is_err());
    assert_eq!(items.read(&mut cached, 1_i64).await.unwrap().unwrap().row.get::<_, i64>("stock"), 11);
    assert_eq!(cached.execute(touch, vec![1_i64.into()]).await.unwrap(), 1);
}
