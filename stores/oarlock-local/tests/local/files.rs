//! State files that another program wrote, or that are newer, damaged or removed.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use oarlock_core::ErrorKind;
use oarlock_core::driver::{Driver as _, Renewal, Renewed};
use oarlock_core::state::Query;

use crate::{claim, granted, open, release, show, temp, waiting};

fn state_files(dir: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(dir.join("state")).unwrap().map(|entry| entry.unwrap().path());
    folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect()
}

fn only_state_file(dir: &Path) -> PathBuf {
    let mut files = state_files(dir);
    assert_eq!(files.len(), 1);
    files.remove(0)
}

#[tokio::test]
async fn files_are_for_their_owner_only() {
    let dir = temp();
    let root = dir.path().join("made/by/us");
    let store = open(&root).await;
    granted(&store, &claim("x")).await;
    let mut folders = vec![root.clone()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700, "{folder:?}");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            seen += 1;
            match std::fs::symlink_metadata(&path).unwrap() {
                stat if stat.is_dir() => folders.push(path),
                stat if stat.is_file() => assert_eq!(stat.permissions().mode() & 0o777, 0o600, "{path:?}"),
                _ => {}
            }
        }
    }
    assert!(seen >= 8);
}

#[tokio::test]
async fn a_foreign_file_is_an_error_and_left_alone() {
    let dir = temp();
    let store = open(dir.path()).await;
    release_after_grant(&store, "x").await;
    let file = only_state_file(dir.path());
    for foreign in [&b"shopping list"[..], &[0x55; 4096], &[0x55; 4095]] {
        std::fs::write(&file, foreign).unwrap();
        for fresh in [&store, &open(dir.path()).await] {
            let error = fresh.attempt(&claim("x")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
            assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
            assert_eq!(fresh.inspect(&Query::name(crate::name("x"))).await.unwrap_err().kind(), ErrorKind::Foreign);
        }
        assert_eq!(std::fs::read(&file).unwrap(), foreign);
    }
    granted(&store, &claim("y")).await;
}

#[tokio::test]
async fn the_file_of_another_name_is_foreign() {
    let dir = temp();
    let store = open(dir.path()).await;
    release_after_grant(&store, "x").await;
    let other = only_state_file(dir.path());
    release_after_grant(&store, "y").await;
    let file = state_files(dir.path()).into_iter().find(|file| *file != other).unwrap();
    std::fs::copy(&other, &file).unwrap();
    assert_eq!(open(dir.path()).await.attempt(&claim("y")).await.unwrap_err().kind(), ErrorKind::Foreign);
}

#[tokio::test]
async fn a_newer_format_is_refused_and_left_alone() {
    let dir = temp();
    let store = open(dir.path()).await;
    release_after_grant(&store, "x").await;
    let file = only_state_file(dir.path());
    let old = std::fs::read(&file).unwrap();

    let newer_payload = rewrite(&old, |json| json.replacen("\"format\":1", "\"format\":2", 1));
    let newer_and_strange = rewrite(&old, |_| r#"{"format":7,"claims":[]}"#.to_owned());
    let mut newer_layout = old.clone();
    for slot in [0, old.len() / 2] {
        newer_layout[slot + 7] = 3;
    }
    for newer in [newer_payload, newer_and_strange, newer_layout] {
        std::fs::write(&file, &newer).unwrap();
        let error = store.attempt(&claim("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NewerFormat, "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), newer);
    }
}

/// Deadlines are moments since the boot of the machine; after a restart they mean nothing.
#[tokio::test]
async fn leases_begin_again_after_a_restart_of_the_machine() {
    let dir = temp();
    let (store, other) = (open(dir.path()).await, open(dir.path()).await);
    let mut held = claim("x");
    held.lifetime = oarlock_core::Lifetime::Lease;
    granted(&store, &held).await;
    let file = only_state_file(dir.path());
    let written = std::fs::read(&file).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let expired = |json: &str| {
        let (before, rest) = json.split_once("\"expires\":").unwrap();
        format!("{before}\"expires\":1{}", &rest[rest.find(',').unwrap()..])
    };
    std::fs::write(&file, rewrite(&written, |json| expired(json).replace(boot.trim(), "an earlier boot"))).unwrap();
    assert_eq!(show(&other, "x").await.holders.len(), 1);
    let left = crate::pending(&other, &claim("x")).await.recheck_after.unwrap();
    assert!(left > held.ttl / 2 && left <= held.ttl, "{left:?}");
    std::fs::write(&file, rewrite(&written, expired)).unwrap();
    granted(&other, &claim("x")).await;
}

/// Versions before this one wrote JSON. What they left is read, and written anew with the next step.
#[tokio::test]
async fn a_file_of_the_layout_before_is_read_and_goes_on() {
    let dir = temp();
    let (store, other) = (open(dir.path()).await, open(dir.path()).await);
    let (mut held, waiter) = (claim("x"), waiting("x"));
    held.value = Some("leader \"one\"".into());
    let first = granted(&store, &held).await;
    crate::pending(&store, &waiter).await;
    let (file, seen) = (only_state_file(dir.path()), show(&store, "x").await);
    let json = rewrite(&std::fs::read(&file).unwrap(), str::to_owned);
    std::fs::write(&file, &json).unwrap();
    let read = show(&other, "x").await;
    assert_eq!((read.holders[0].id, &read.holders[0].label), (held.id, &seen.holders[0].label));
    assert_eq!((read.holders[0].value.as_deref(), read.waiters.count()), (Some("leader \"one\""), Some(1)));
    assert_eq!(std::fs::read(&file).unwrap(), json, "showing it changes nothing");
    release(&store, &held).await;
    assert!(granted(&other, &waiter).await.fence > first.fence);
    assert_eq!(newest(&std::fs::read(&file).unwrap()).1[7], 2, "the next step wrote the layout of this version");
}

/// The newest slot: where it starts, and its bytes.
fn newest(file: &[u8]) -> (usize, &[u8]) {
    let size = file.len() / 2;
    let sequence = |slot: usize| u64::from_le_bytes(file[slot * size + 8..slot * size + 16].try_into().unwrap());
    let start = if sequence(0) > sequence(1) { 0 } else { size };
    (start, &file[start..start + size])
}

/// The newest slot as the layout before would have it: JSON with a checksum that fits, after a change.
fn rewrite(file: &[u8], change: impl Fn(&str) -> String) -> Vec<u8> {
    let (start, slot) = newest(file);
    let length = u32::from_le_bytes(slot[16..20].try_into().unwrap()) as usize;
    let text = |bytes: &mut &[u8]| {
        let (text, rest) = bytes[4..].split_at(u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize);
        *bytes = rest;
        String::from_utf8(text.to_vec()).unwrap()
    };
    let mut payload = &slot[24..24 + length];
    let (name, boot) = (text(&mut payload), text(&mut payload));
    let resource = oarlock_core::model::Resource::from_bytes(payload).unwrap();
    let [name, boot] = [name, boot].map(|text| serde_json::to_string(&text).unwrap());
    let resource = serde_json::to_string(&resource).unwrap();
    let payload = change(&format!(r#"{{"format":1,"name":{name},"boot":{boot},"resource":{resource}}}"#));
    let mut changed = file.to_vec();
    changed[start + 7] = 1;
    let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
    changed[start + 16..start + 20].copy_from_slice(&length);
    changed[start + 24..start + 24 + payload.len()].copy_from_slice(payload.as_bytes());
    let mut crc = crc32fast::Hasher::new();
    crc.update(&file[start + 8..start + 16]);
    crc.update(&length);
    crc.update(payload.as_bytes());
    changed[start + 20..start + 24].copy_from_slice(&crc.finalize().to_le_bytes());
    changed
}

async fn release_after_grant(store: &oarlock_local::Local, name: &str) {
    let claim = claim(name);
    granted(store, &claim).await;
    release(store, &claim).await;
}

/// After a flipped bit in the newest slot the one before it counts, never an invented state.
#[tokio::test]
async fn when_a_slot_is_damaged_the_one_before_counts() {
    let dir = temp();
    let store = open(dir.path()).await;
    let held = claim("x");
    granted(&store, &held).await;
    release(&store, &held).await;
    let file = std::fs::File::options().read(true).write(true).open(only_state_file(dir.path())).unwrap();
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let size = bytes.len() / 2;
    // The file began with the grant in the first slot; the release went to the second.
    let at = size + 24 + 20;
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
    assert_eq!(show(&store, "x").await.holders.len(), 1);
}

#[tokio::test]
async fn an_empty_file_is_an_unused_name() {
    let dir = temp();
    let store = open(dir.path()).await;
    release_after_grant(&store, "x").await;
    let file = only_state_file(dir.path());
    for nothing in [&[][..], &[0; 4096]] {
        std::fs::write(&file, nothing).unwrap();
        release_after_grant(&store, "x").await;
    }
}

#[tokio::test]
async fn a_state_outgrows_its_slots_and_shrinks_again() {
    let dir = temp();
    let (store, other) = (open(dir.path()).await, open(dir.path()).await);
    let held = claim("x");
    granted(&store, &held).await;
    let waiters: Vec<_> = (0..400).map(|_| waiting("x")).collect();
    for waiter in &waiters {
        crate::pending(&store, waiter).await;
    }
    let file = only_state_file(dir.path());
    assert!(std::fs::metadata(&file).unwrap().len() > 65_536);
    assert_eq!(show(&other, "x").await.waiters.count(), Some(400));
    for waiter in &waiters {
        release(&other, waiter).await;
    }
    release(&store, &held).await;
    assert!(std::fs::metadata(&file).unwrap().len() <= 65_536);
    release_after_grant(&other, "x").await;
}

#[tokio::test]
async fn a_state_that_cannot_grow_stays_as_it_was() {
    let dir = temp();
    let store = open(dir.path()).await;
    let held = claim("x");
    granted(&store, &held).await;
    let file = only_state_file(dir.path());
    let before = std::fs::read(&file).unwrap();
    // A folder in the way of the larger file.
    std::fs::create_dir(file.with_extension("new")).unwrap();
    let mut large = waiting("x");
    large.value = Some("v".repeat(5000).into());
    assert_eq!(store.attempt(&large).await.unwrap_err().kind(), ErrorKind::Os);
    assert_eq!(std::fs::read(&file).unwrap(), before);
    std::fs::remove_dir(file.with_extension("new")).unwrap();
    crate::pending(&store, &large).await;
    assert_eq!(show(&store, "x").await.waiters.count(), Some(1));
}

#[tokio::test]
async fn a_removed_directory_is_noticed() {
    let dir = temp();
    let root = dir.path().join("store");
    let store = open(&root).await;
    let held = claim("x");
    granted(&store, &held).await;
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(store.attempt(&claim("x")).await.unwrap_err().kind(), ErrorKind::Closed);
    let renewed = store.renew(&[Renewal::of(std::sync::Arc::new(held))]).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewed::Gone(_)), "{renewed:?}");
}

#[tokio::test]
async fn a_file_that_was_replaced_is_not_written_again() {
    let dir = temp();
    let store = open(dir.path()).await;
    release_after_grant(&store, "x").await;
    // The store has it open; another process removes it.
    std::fs::remove_file(only_state_file(dir.path())).unwrap();
    granted(&store, &claim("x")).await;
    crate::pending(&open(dir.path()).await, &claim("x")).await;
}
