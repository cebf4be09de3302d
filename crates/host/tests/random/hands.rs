//! The hands that reach into a world: people with orders, and whatever kills processes.

use std::time::Duration;

use bowline_host::Host;
use bowline_host::supervisor::Order;
use bowline_link::Exit;
use bowline_sim::World;

use crate::worlds::Draw;

/// Does something to a server some time.
pub(crate) async fn meddle((host, world): (Host, World), server: &'static str, mut draw: Draw) {
    tokio::time::sleep(draw.delay()).await;
    let order = match draw.rng.u8(..8) {
        0 => Order::Start,
        1 | 2 => Order::Stop,
        3 => Order::Restart,
        4 => Order::Reload,
        5 => {
            world.change(server, draw.generation());
            return;
        }
        _ => {
            // Now and then several times in a row, as with a server that cannot live.
            for _ in 0..draw.rng.usize(1..4) {
                world.kill(server, Exit::Signal(9));
                let pause = Duration::from_millis(draw.rng.u64(1..1_500));
                tokio::time::sleep(pause).await;
            }
            return;
        }
    };
    world.order(&host, server, order).await.unwrap();
}
