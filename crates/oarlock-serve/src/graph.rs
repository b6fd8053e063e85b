//! The wait-for graph: which process waits for which, and where they wait in a circle.

use std::collections::{BTreeMap, BTreeSet};

use oarlock::Label;
use serde_json::{Value, json};

use crate::view::Lock;

/// Processes, and who waits for whom.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    processes: BTreeMap<String, usize>,
    /// From the one that waits to the one that holds, by the name of the lock.
    edges: BTreeSet<(usize, usize, String)>,
}

/// A process, as its claims identify it. Claims that identify no process are one each.
fn process(label: &Label, claim: &str) -> String {
    let user = if label.user.is_empty() { String::new() } else { format!("{}@", label.user) };
    match (label.host.as_str(), label.pid) {
        ("", 0) => format!("claim {claim}"),
        // Several clients can share one address.
        (host, 0) => format!("{user}{host} (claim {claim})"),
        (host, pid) => format!("{user}{host} (pid {pid})"),
    }
}

/// The graph of these locks: a waiter waits for every holder of its lock.
pub(crate) fn of<'a>(locks: impl Iterator<Item = &'a Lock>) -> Graph {
    let mut graph = Graph::default();
    for lock in locks {
        for waiter in lock.waiters.iter().flatten() {
            let from = graph.node(process(&waiter.label, &waiter.claim));
            for holder in &lock.holders {
                let to = graph.node(process(&holder.label, &holder.claim));
                graph.edges.insert((from, to, lock.name.clone()));
            }
        }
    }
    graph
}

impl Graph {
    fn node(&mut self, name: String) -> usize {
        let next = self.processes.len();
        *self.processes.entry(name).or_insert(next)
    }

    /// Processes that wait for each other in a circle: each set of them is a deadlock, unless one gives up.
    fn cycles(&self) -> Vec<BTreeSet<usize>> {
        let mut next: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (from, to, _) in &self.edges {
            next.entry(*from).or_default().insert(*to);
        }
        // Most graphs are chains: a process that waits for none, or that none waits for, is in no circle.
        loop {
            let waited_for: BTreeSet<usize> = next.values().flatten().copied().collect();
            let nodes = next.len();
            next.retain(|node, _| waited_for.contains(node));
            let waiting: BTreeSet<usize> = next.keys().copied().collect();
            next.values_mut().for_each(|to| to.retain(|node| waiting.contains(node)));
            next.retain(|_, to| !to.is_empty());
            if next.len() == nodes {
                break;
            }
        }
        let reach = |start: usize| {
            let (mut seen, mut todo) = (BTreeSet::new(), vec![start]);
            while let Some(node) = todo.pop() {
                todo.extend(next.get(&node).into_iter().flatten().filter(|node| seen.insert(**node)));
            }
            seen
        };
        // Two are in one circle if each reaches the other. Only those that wait can be.
        let reached: BTreeMap<usize, BTreeSet<usize>> = next.keys().map(|node| (*node, reach(*node))).collect();
        let mut cycles: Vec<BTreeSet<usize>> = Vec::new();
        for (node, seen) in reached.iter().filter(|(node, seen)| seen.contains(node)) {
            if !cycles.iter().any(|cycle| cycle.contains(node)) {
                let back = |other: &&usize| reached.get(other).is_some_and(|seen| seen.contains(node));
                cycles.push(seen.iter().filter(back).copied().collect());
            }
        }
        cycles
    }

    pub(crate) fn json(&self) -> Value {
        let mut names = vec![""; self.processes.len()];
        for (name, at) in &self.processes {
            names[*at] = name;
        }
        let edges: Vec<_> =
            self.edges.iter().map(|(from, to, name)| json!({ "from": from, "to": to, "name": name })).collect();
        json!({ "processes": names, "edges": edges, "cycles": self.cycles() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(usize, usize)]) -> Graph {
        let edges = edges.iter().map(|&(from, to)| (from, to, "x".to_owned())).collect();
        Graph { processes: BTreeMap::new(), edges }
    }

    #[test]
    fn circles_are_found_and_chains_are_not() {
        assert!(graph(&[(0, 1), (1, 2), (0, 2)]).cycles().is_empty());
        assert_eq!(graph(&[(0, 1), (1, 0), (2, 0)]).cycles(), [BTreeSet::from([0, 1])]);
        assert_eq!(graph(&[(3, 3)]).cycles(), [BTreeSet::from([3])], "a process that waits for itself");
        let two = graph(&[(0, 1), (1, 0), (2, 3), (3, 4), (4, 2), (1, 2)]).cycles();
        assert_eq!(two, [BTreeSet::from([0, 1]), BTreeSet::from([2, 3, 4])]);
    }
}
