//! Operator actions and process kills.

use std::time::Duration;

use bowline_host::Host;
use bowline_host::supervisor::ServerAction;
use bowline_link::LinkExit;
use bowline_testkit::SimWorld;

use crate::worlds::Draw;

/// Acts on a server at a random time.
pub(crate) async fn disturb_server(
    host: Host,
    world: SimWorld,
    server: &'static str,
    mut draw: Draw,
) {
    tokio::time::sleep(draw.random_delay()).await;
    let order = match draw.rng.u8(..8) {
        0 => ServerAction::Start,
        1 | 2 => ServerAction::Stop,
        3 => ServerAction::Restart,
        4 => ServerAction::Reload,
        5 => {
            world.change_script(server, draw.random_generation());
            return;
        }
        _ => {
            // Sometimes several times in a row, like a crashing server.
            for _ in 0..draw.rng.usize(1..4) {
                world.kill(server, LinkExit::Signal(9));
                let pause = Duration::from_millis(draw.rng.u64(1..1_500));
                tokio::time::sleep(pause).await;
            }
            return;
        }
    };
    world.give_order(&host, server, order).await.unwrap();
}
