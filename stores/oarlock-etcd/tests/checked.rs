//! Values that refuse smaller fences.

use oarlock_core::{ErrorKind, Fence};
use oarlock_etcd::{Checked, Config, Written};
use oarlock_testbed::Etcd as Server;

#[tokio::test]
async fn a_smaller_fence_is_refused_and_an_equal_one_is_not() -> Result<(), Box<dyn std::error::Error>> {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let values = Checked::open(Config::new([server.addr().to_string()])).await?;
    let (early, late) = (Fence::new(7), Fence::new((1 << 53) - 1));
    assert_eq!(values.get("balance").await?, None);
    assert_eq!(values.set("balance", early, b"1").await?, Written::Stored);
    // As numbers, not as texts.
    assert_eq!(values.set("balance", Fence::new(10), b"2").await?, Written::Stored);
    assert_eq!(values.set("balance", early, b"1").await?, Written::Refused { stored: Fence::new(10) });
    assert_eq!(values.set("balance", late, b"2").await?, Written::Stored);
    let smaller = Fence::new(late.get() - 1);
    assert_eq!(values.set("balance", smaller, b"3").await?, Written::Refused { stored: late });
    assert_eq!(values.get("balance").await?, Some((late, b"2".to_vec())));
    assert_eq!(values.set("balance", late, b"\x00\xff").await?, Written::Stored);
    assert_eq!(values.get("balance").await?, Some((late, b"\x00\xff".to_vec())));
    let over = values.set("balance", Fence::new(1 << 53), b"4").await.expect_err("too large");
    assert_eq!(over.kind(), ErrorKind::FenceExhausted);

    for (key, beside) in [("theirs", None), ("other", Some("none"))] {
        server.ctl(&["put", key, "x"])?;
        if let Some(beside) = beside {
            server.ctl(&["put", &format!("{key}/fence"), beside])?;
        }
        let before = server.ctl(&["get", "--prefix", key, "-w", "json"])?;
        let refused = values.set(key, early, b"1").await.expect_err("it has no fence");
        assert_eq!(refused.kind(), ErrorKind::Foreign, "{refused}");
        let kvs = |text: &str| text.split_once("\"kvs\"").map(|(_, kvs)| kvs.to_owned());
        assert_eq!(kvs(&server.ctl(&["get", "--prefix", key, "-w", "json"])?), kvs(&before));
    }
    Ok(())
}
