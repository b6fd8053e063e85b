//! One hot item: how many units a second are sold, by the number of segments that they lie in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_stock::{Count, Order, Shelf, Stock, Take};
use tokio::sync::Barrier;

use crate::demo::database::Shelves;
use crate::demo::trouble::Boxed;

/// More than is sold in any time.
const PLENTY: u64 = 1 << 32;
/// What is sold to the last one at the end.
const FEW: u64 = 200;

pub(crate) struct Plan {
    pub(crate) takers: u32,
    pub(crate) segments: Vec<u32>,
    pub(crate) duration: Duration,
    /// Two takers with the same ids, to see that it is noticed.
    pub(crate) sabotage: bool,
    /// What the names of the items begin with.
    pub(crate) name: String,
}

impl Plan {
    fn items(&self) -> impl Iterator<Item = (String, u32)> {
        self.segments.iter().map(|segments| (format!("{} {segments}", self.name), *segments))
    }

    /// The names of all items.
    pub(crate) fn names(&self) -> Vec<String> {
        self.items().chain([self.last()]).map(|(name, _)| name).collect()
    }

    fn last(&self) -> (String, u32) {
        (format!("{} last", self.name), self.segments.iter().copied().max().unwrap_or(1))
    }
}

/// One number of segments.
#[derive(Clone, Debug)]
pub(crate) struct Sale {
    pub(crate) segments: u32,
    /// How many takers were told that they have one.
    pub(crate) told: u64,
    pub(crate) count: Count,
    pub(crate) took: Duration,
}

impl Sale {
    /// Each buyer that was told so has a unit, and the units without a buyer are still there.
    pub(crate) fn is_right(&self) -> bool {
        self.count.held == self.told && self.count.available + self.count.held == self.count.delivered
    }

    #[expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]
    pub(crate) fn rate(&self) -> f64 {
        self.told as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

pub(crate) struct Findings {
    pub(crate) sales: Vec<Sale>,
    /// A few units, sold to the last one.
    pub(crate) last: Sale,
}

impl Findings {
    pub(crate) fn is_right(&self) -> bool {
        let sold_out = self.last.is_right() && self.last.told == FEW && self.last.count.available == 0;
        sold_out && self.sales.iter().all(|sale| sale.is_right() && sale.told > 0)
    }
}

pub(crate) async fn run<S: Shelves>(plan: &Arc<Plan>, shelves: &S) -> Result<Findings, Boxed> {
    let clerk = Stock::new(shelves.shelf().await?);
    clerk.init().await?;
    let mut takers = Vec::new();
    for _ in 0..plan.takers {
        takers.push(Stock::new(shelves.shelf().await?));
    }
    let mut sales = Vec::new();
    for (sku, segments) in plan.items() {
        sales.push(sell(plan, &clerk, &takers, (sku, segments), PLENTY, Some(plan.duration)).await?);
    }
    let last = sell(plan, &clerk, &takers, plan.last(), FEW, None).await?;
    Ok(Findings { sales, last })
}

/// One sale: until the time is up, or to the last unit.
async fn sell<S: Shelf>(
    plan: &Arc<Plan>,
    clerk: &Stock<S>,
    takers: &[Stock<S>],
    (sku, segments): (String, u32),
    units: u64,
    span: Option<Duration>,
) -> Result<Sale, Boxed> {
    clerk.create(&sku, segments).await?;
    clerk.restock(&sku, "the delivery", units).await?;
    let opening = Arc::new(Barrier::new(takers.len() + 1));
    let mut running = Vec::new();
    for (taker, stock) in takers.iter().enumerate() {
        let (stock, sku, opening) = (stock.clone(), sku.clone(), opening.clone());
        let whose = if plan.sabotage { taker / 2 } else { taker };
        running.push(tokio::spawn(async move {
            opening.wait().await;
            let (start, mut told) = (Instant::now(), 0);
            for line in 0_u64.. {
                if span.is_some_and(|span| start.elapsed() >= span) {
                    break;
                }
                let order = Order { sku: sku.clone(), id: format!("{whose}-{line}"), quantity: 1, hold: None };
                match stock.take(order).await? {
                    Take::Reserved(_) => told += 1,
                    Take::SoldOut { .. } => break,
                }
            }
            Ok::<u64, oarlock_stock::Error>(told)
        }));
    }
    opening.wait().await;
    let start = Instant::now();
    let mut told = 0;
    for taker in running {
        told += taker.await??;
    }
    let took = start.elapsed();
    Ok(Sale { segments, told, count: clerk.count(&sku).await?, took })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sale(told: u64, held: u64, available: u64, delivered: u64) -> Sale {
        let mut count = Count::default();
        (count.held, count.available, count.delivered) = (held, available, delivered);
        Sale { segments: 1, told, count, took: Duration::from_secs(1) }
    }

    #[test]
    fn units_that_two_were_promised_and_units_that_are_gone_are_missed() {
        let right = sale(FEW, FEW, 0, FEW);
        let with = |last: Sale, first: Sale| Findings { sales: vec![first], last }.is_right();
        assert!(with(right.clone(), sale(10, 10, 90, 100)));
        assert!(!with(right.clone(), sale(11, 10, 90, 100)), "promised twice");
        assert!(!with(right.clone(), sale(10, 10, 89, 100)), "gone");
        assert!(!with(right.clone(), sale(0, 0, 100, 100)), "nothing was sold");
        assert!(!with(sale(FEW - 1, FEW - 1, 1, FEW), right.clone()), "sold out too early");
        assert!(!with(sale(FEW + 1, FEW + 1, 0, FEW + 1), right), "more than there were");
    }
}
