//! The wait-for graph: which process waits for which, and where they wait in a circle.
//!
//! It has a node for each process and for each lock, so that it grows with the number of claims: thousands of readers
//! and writers of one lock would be millions of pairs.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use http::StatusCode;
use oarlock::Label;
use oarlock::state::Kind;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use crate::access::{Client, Right};
use crate::board::Sample;
use crate::problem::Problem;
use crate::view::{self, Lock};

/// The most claims and the most pairs of one answer. Those in a circle come first.
const MAX_CLAIMS: usize = 10_000;
const MAX_PAIRS: usize = 2000;

/// The answers for the last sample: one for all clients that may read the same names.
#[derive(Debug, Default)]
pub(crate) struct Graphs(Mutex<HashMap<Vec<String>, Made>>);

/// An answer, and the sample of which it was made.
type Made = (Weak<Sample>, Bytes);

impl Graphs {
    /// The graph of a sample as JSON, as far as this client may read it. It is made once for each sample, and in a thread
    /// of its own: renewals must not wait for it.
    pub(crate) async fn of(&self, sample: &Arc<Sample>, client: &Client) -> Result<Bytes, Problem> {
        let mut graphs = self.0.lock().await;
        if let Some((of, answer)) = graphs.get(client.patterns(Right::Read))
            && Weak::ptr_eq(of, &Arc::downgrade(sample))
        {
            return Ok(answer.clone());
        }
        let (held, reader) = (sample.clone(), client.clone());
        let made = tokio::task::spawn_blocking(move || {
            let locks = held.rows.values().map(|row| &row.lock).filter(|lock| reader.may(Right::Read, &lock.name));
            let mut body = Graph::of(locks).json(MAX_CLAIMS, MAX_PAIRS);
            body["at_ms"] = json!(held.at_ms);
            Bytes::from(format!("{body}\n"))
        });
        let failed = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the graph could not be made");
        let answer = made.await.map_err(failed)?;
        graphs.retain(|_, (of, _)| of.strong_count() > 0);
        graphs.insert(client.patterns(Right::Read).to_vec(), (Arc::downgrade(sample), answer.clone()));
        Ok(answer)
    }
}

/// Processes, the locks that they wait for, and circles among them.
#[derive(Debug, Default)]
struct Graph<'a> {
    processes: Vec<String>,
    locks: Vec<Node<'a>>,
    /// Processes that wait for each other: each set of them is a deadlock, unless one gives up.
    cycles: Vec<Vec<usize>>,
}

/// A lock that is held and waited for, with its processes.
#[derive(Debug)]
struct Node<'a> {
    name: &'a str,
    /// Whether the end of any hold may be enough, as for a semaphore. Else a waiter waits for every holder.
    any: bool,
    waiters: Vec<usize>,
    holders: Vec<usize>,
    /// The circle that it is a part of.
    cycle: Option<usize>,
}

/// A process, as its claims identify it. Claims that identify no process are one each.
fn process(label: &Label, claim: &str) -> String {
    match (label.host.as_str(), label.pid) {
        ("", 0) => format!("claim {claim}"),
        // Several clients can share one address.
        (_, 0) => format!("{} (claim {claim})", view::person(label)),
        _ => view::person(label),
    }
}

impl<'a> Graph<'a> {
    fn of(locks: impl Iterator<Item = &'a Lock>) -> Self {
        let (mut graph, mut known) = (Self::default(), HashMap::new());
        let mut node = |name: String| {
            *known.entry(name).or_insert_with_key(|name| {
                graph.processes.push(name.clone());
                graph.processes.len() - 1
            })
        };
        let mut nodes = Vec::new();
        for lock in locks.filter(|lock| !lock.holders.is_empty()) {
            let waiters = lock.waiters.iter().flatten();
            let waiters = distinct(waiters.map(|waiter| node(process(&waiter.label, &waiter.claim))));
            if waiters.is_empty() {
                continue;
            }
            let any = lock.holders.iter().any(|holder| holder.kind == Kind::Semaphore);
            let holders = distinct(lock.holders.iter().map(|holder| node(process(&holder.label, &holder.claim))));
            nodes.push(Node { name: &lock.name, any: any && holders.len() > 1, waiters, holders, cycle: None });
        }
        graph.locks = nodes;
        graph.find_cycles();
        graph
    }

    /// Finds the circles, in a time that grows with the number of claims.
    fn find_cycles(&mut self) {
        let stuck = self.stuck();
        // Processes first, then locks. An edge leads from what waits to what it waits for.
        let count = self.processes.len();
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); count + self.locks.len()];
        for (at, lock) in self.locks.iter().enumerate().filter(|(at, _)| stuck[count + at]) {
            next[count + at] = lock.holders.iter().copied().filter(|&process| stuck[process]).collect();
            for &waiter in lock.waiters.iter().filter(|&&process| stuck[process]) {
                next[waiter].push(count + at);
            }
        }
        for mut part in components(&next).into_iter().filter(|part| part.len() > 1) {
            part.sort_unstable();
            let locks = part.split_off(part.partition_point(|&node| node < count));
            locks.iter().for_each(|lock| self.locks[lock - count].cycle = Some(self.cycles.len()));
            self.cycles.push(part);
        }
    }

    /// Which processes, and then which locks, cannot go on by themselves: a process that waits for a lock that is stuck,
    /// and a lock one of whose holders is stuck; all of them, where any is enough.
    fn stuck(&self) -> Vec<bool> {
        let count = self.processes.len();
        let mut waits = vec![0_usize; count];
        let mut holds: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (at, lock) in self.locks.iter().enumerate() {
            lock.waiters.iter().for_each(|&process| waits[process] += 1);
            lock.holders.iter().for_each(|&process| holds[process].push(at));
        }
        let mut stuck = vec![true; count + self.locks.len()];
        // Of each lock: how many of its holders may go on before it is not stuck any more.
        let mut left: Vec<usize> =
            self.locks.iter().map(|lock| if lock.any { 1 } else { lock.holders.len() }).collect();
        let mut moving: Vec<usize> = (0..count).filter(|&process| waits[process] == 0).collect();
        while let Some(process) = moving.pop() {
            stuck[process] = false;
            for &at in &holds[process] {
                left[at] = left[at].saturating_sub(1);
                if left[at] > 0 || !stuck[count + at] {
                    continue;
                }
                stuck[count + at] = false;
                for &waiter in &self.locks[at].waiters {
                    waits[waiter] -= 1;
                    if waits[waiter] == 0 {
                        moving.push(waiter);
                    }
                }
            }
        }
        stuck
    }

    /// As an answer with at most so many claims and pairs; it says how many it left out.
    fn json(&self, max_claims: usize, max_pairs: usize) -> Value {
        let (mut shown, mut numbers) = (Vec::new(), HashMap::new());
        let mut number = |process: usize| {
            *numbers.entry(process).or_insert_with(|| {
                shown.push(self.processes[process].as_str());
                shown.len() - 1
            })
        };
        let in_cycles = self.locks.iter().filter(|lock| lock.cycle.is_some());
        let ordered = || in_cycles.clone().chain(self.locks.iter().filter(|lock| lock.cycle.is_none()));
        let of_cycle: Vec<HashSet<usize>> = self.cycles.iter().map(|cycle| cycle.iter().copied().collect()).collect();
        let cycles: Vec<Vec<usize>> =
            self.cycles.iter().map(|cycle| cycle.iter().map(|&p| number(p)).collect()).collect();

        // First the pairs within circles.
        let all_pairs: usize = self.locks.iter().map(|lock| lock.waiters.len() * lock.holders.len()).sum();
        let (mut pairs, mut seen) = (Vec::new(), HashSet::new());
        let circular = in_cycles.clone().enumerate().flat_map(|(at, lock)| {
            let part = lock.cycle.map(|cycle| &of_cycle[cycle]);
            let inside = move |process: &&usize| part.is_some_and(|part| part.contains(process));
            let holders = lock.holders.iter().filter(inside);
            lock.waiters
                .iter()
                .filter(inside)
                .flat_map(move |from| holders.clone().map(move |to| (at, lock, *from, *to)))
        });
        let others = ordered().enumerate().flat_map(|(at, lock)| {
            lock.waiters.iter().flat_map(move |from| lock.holders.iter().map(move |to| (at, lock, *from, *to)))
        });
        for (at, lock, from, to) in circular.chain(others) {
            if pairs.len() == max_pairs {
                break;
            }
            if seen.insert((at, from, to)) {
                let mut pair = json!({ "from": number(from), "to": number(to), "name": lock.name });
                if lock.any {
                    pair["any"] = true.into();
                }
                pairs.push(pair);
            }
        }

        let all_claims: usize = self.locks.iter().map(|lock| lock.waiters.len() + lock.holders.len()).sum();
        let (mut room, mut locks) = (max_claims, Vec::new());
        for lock in ordered() {
            if room == 0 {
                break;
            }
            let mut numbers = |processes: &[usize]| -> Vec<usize> {
                let some = &processes[..processes.len().min(room)];
                room -= some.len();
                some.iter().map(|&process| number(process)).collect()
            };
            let (holders, waiters) = (numbers(&lock.holders), numbers(&lock.waiters));
            locks.push(json!({ "name": lock.name, "any": lock.any, "holders": holders, "waiters": waiters }));
        }
        let left_out = json!({ "claims": all_claims - (max_claims - room), "edges": all_pairs - pairs.len() });
        let fields = [
            ("processes", json!(shown)),
            ("locks", json!(locks)),
            ("edges", json!(pairs)),
            ("cycles", json!(cycles)),
            ("left_out", left_out),
        ];
        Value::Object(Map::from_iter(fields.map(|(key, value)| (key.to_owned(), value))))
    }
}

/// Each once, in their order.
fn distinct(processes: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut seen = HashSet::new();
    processes.filter(|process| seen.insert(*process)).collect()
}

/// The strongly connected components, by Tarjan's algorithm. Without recursion: a chain may be long.
fn components(next: &[Vec<usize>]) -> Vec<Vec<usize>> {
    const NEW: usize = usize::MAX;
    let (mut index, mut low) = (vec![NEW; next.len()], vec![0; next.len()]);
    let (mut open, mut is_open, mut parts) = (Vec::new(), vec![false; next.len()], Vec::new());
    let mut count = 0;
    for start in 0..next.len() {
        if index[start] != NEW {
            continue;
        }
        // Each node on the way, and how many of its edges were followed.
        let mut way = vec![(start, 0)];
        while let Some((node, followed)) = way.pop() {
            if followed == 0 {
                (index[node], low[node], is_open[node]) = (count, count, true);
                count += 1;
                open.push(node);
            } else {
                low[node] = low[node].min(low[next[node][followed - 1]]);
            }
            if let Some(at) = (followed..next[node].len()).find(|&at| {
                let to = next[node][at];
                if index[to] != NEW && is_open[to] {
                    low[node] = low[node].min(index[to]);
                }
                index[to] == NEW
            }) {
                way.push((node, at + 1));
                way.push((next[node][at], 0));
            } else if low[node] == index[node] {
                let from = open.iter().rposition(|&other| other == node).unwrap_or_default();
                let part = open.split_off(from);
                part.iter().for_each(|&node| is_open[node] = false);
                parts.push(part);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use oarlock::state::{ClaimId, HolderState, ResourceName, ResourceState, WaiterState, Waiters, Weight};

    use super::*;

    /// A lock with these processes.
    fn lock(name: &str, kind: Kind, holders: &[u32], waiters: &[u32]) -> Lock {
        let mut next = 0;
        let mut claim = |pid: u32| {
            next += 1;
            let mut label = Label::default();
            (label.host, label.pid) = ("h".to_owned(), pid);
            (ClaimId::from_bits(next), Arc::new(label))
        };
        let mut state = ResourceState::free(ResourceName::new(name).unwrap());
        for &pid in holders {
            let (id, label) = claim(pid);
            let mut holder = HolderState::new(id, kind, Weight::All);
            holder.label = label;
            state.holders.push(holder);
        }
        let waiting = waiters.iter().map(|&pid| {
            let (id, label) = claim(pid);
            let mut waiter = WaiterState::new(id, kind, Weight::All);
            waiter.label = label;
            waiter
        });
        state.waiters = Waiters::Listed(waiting.collect());
        Lock::from(&state)
    }

    fn answer(locks: &[Lock]) -> Value {
        Graph::of(locks.iter()).json(MAX_CLAIMS, MAX_PAIRS)
    }

    /// The processes of each circle, by their pids.
    fn cycles(locks: &[Lock]) -> Vec<Vec<u32>> {
        let answer = answer(locks);
        let pid = |process: &Value| -> u32 {
            let name = answer["processes"][usize::try_from(process.as_u64().unwrap()).unwrap()].as_str().unwrap();
            name.trim_start_matches("h (pid ").trim_end_matches(')').parse().unwrap()
        };
        let cycles = answer["cycles"].as_array().unwrap().iter();
        let mut cycles: Vec<Vec<u32>> =
            cycles.map(|cycle| cycle.as_array().unwrap().iter().map(pid).collect()).collect();
        cycles.iter_mut().for_each(|cycle| cycle.sort_unstable());
        cycles.sort();
        cycles
    }

    #[test]
    fn circles_are_found_and_chains_are_not() {
        let mutex = |name, holder: u32, waiters: &[u32]| lock(name, Kind::Mutex, &[holder], waiters);
        assert!(cycles(&[mutex("a", 1, &[9]), mutex("b", 2, &[9, 1])]).is_empty());
        assert_eq!(cycles(&[mutex("a", 1, &[9]), mutex("b", 9, &[1, 2])]), [[1, 9]]);
        assert_eq!(cycles(&[mutex("a", 3, &[3])]), [[3]], "a process that waits for itself");
        let two = [
            mutex("a", 1, &[9]),
            mutex("b", 9, &[1]),
            mutex("c", 3, &[2]),
            mutex("d", 4, &[3]),
            mutex("e", 2, &[4, 1]),
        ];
        assert_eq!(cycles(&two), [vec![1, 9], vec![2, 3, 4]]);
        let readers = [lock("a", Kind::Read, &[1, 2], &[3]), mutex("b", 3, &[1])];
        assert_eq!(cycles(&readers), [[1, 3]], "a writer waits for every reader");
    }

    #[test]
    fn a_semaphore_is_stuck_when_all_its_holders_are() {
        let pool = || lock("pool", Kind::Semaphore, &[1, 2], &[3]);
        assert!(
            cycles(&[pool(), lock("b", Kind::Mutex, &[3], &[1])]).is_empty(),
            "2 goes on, and gives its permit back"
        );
        assert_eq!(cycles(&[pool(), lock("b", Kind::Mutex, &[3], &[1, 2])]), [[1, 2, 3]], "none goes on");
        let one = [lock("pool", Kind::Semaphore, &[1], &[3]), lock("b", Kind::Mutex, &[3], &[1])];
        assert_eq!(cycles(&one), [[1, 3]], "the only holder");
        let answer = answer(&[pool()]);
        assert_eq!((&answer["locks"][0]["any"], &answer["edges"][0]["any"]), (&json!(true), &json!(true)), "{answer}");
    }

    #[test]
    fn a_lock_with_thousands_of_readers_and_writers_has_a_link_for_each() {
        let (readers, writers): (Vec<u32>, Vec<u32>) = ((1..=2000).collect(), (2001..=4000).collect());
        let book = lock("book", Kind::Read, &readers, &writers);
        // The last writer holds what the last reader waits for.
        let locks = [book, lock("z", Kind::Mutex, &[4000], &[2000])];
        let graph = Graph::of(locks.iter());
        let links: usize = graph.locks.iter().map(|lock| lock.waiters.len() + lock.holders.len()).sum();
        assert_eq!((links, graph.processes.len()), (4002, 4000));
        assert_eq!(cycles(&locks), [[2000, 4000]]);
        let answer = graph.json(MAX_CLAIMS, MAX_PAIRS);
        assert_eq!(answer["left_out"], json!({ "claims": 0, "edges": 2000 * 2000 + 1 - MAX_PAIRS }));
        let (first, second) = (&answer["edges"][0], &answer["edges"][1]);
        assert_eq!((&first["from"], &first["to"]), (&second["to"], &second["from"]), "the circle is shown first");
        let few = graph.json(100, 10);
        let shown = few["locks"].as_array().unwrap().iter();
        let shown: usize = shown
            .map(|lock| lock["holders"].as_array().unwrap().len() + lock["waiters"].as_array().unwrap().len())
            .sum();
        assert_eq!((shown, few["edges"].as_array().unwrap().len()), (100, 10));
        assert_eq!(few["left_out"]["claims"], 4002 - 100, "and it says so");
        assert!(few["processes"].as_array().unwrap().len() <= 100 + 2 * 10 + 2);
    }

    #[test]
    fn a_long_chain_has_no_circle() {
        let chain: Vec<Lock> = (1..20_000).map(|at| lock(&format!("{at}"), Kind::Mutex, &[at + 1], &[at])).collect();
        assert!(cycles(&chain).is_empty());
    }

    #[tokio::test]
    async fn a_graph_is_made_once_for_each_sample_and_shows_what_the_client_may_read() {
        let client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        let (graphs, one, other) = (Graphs::default(), Arc::new(Sample::default()), Arc::new(Sample::default()));
        let first = graphs.of(&one, &client).await.unwrap();
        assert_eq!(first.as_ptr(), graphs.of(&one, &client).await.unwrap().as_ptr(), "not made again");
        assert_ne!(first.as_ptr(), graphs.of(&other, &client).await.unwrap().as_ptr());
        drop((one, other));
        graphs.of(&Arc::default(), &client).await.unwrap();
        assert_eq!(graphs.0.lock().await.len(), 1, "nothing is left behind");
    }
}
