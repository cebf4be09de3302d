//! Runs one server from its start to the last of its processes.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::whole;
use bowline_link::Exit;
use bowline_link::stdio::{Identity, Process, StdioSpec};
use bowline_wire::executor::{DATA_BYTES_MAX, FaultCode};
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::fault;
use super::served::{Haste, Last, Served};

/// What is read of stderr at once.
const STDERR_CHUNK_BYTES: usize = 16 * 1024;

/// A process whose streams have ended is expected to go within this time.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// What a gone process has left in its pipes is read within this time.
const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// Starts a server and sees it through to its end, which the gateway is told.
pub(super) async fn run(served: Arc<Served>, spec: StdioSpec) {
    let mut process = match spec.start().await {
        Ok(process) => process,
        Err(error) => {
            tracing::warn!(server = %spec.server, error = %whole(&error), "cannot be started");
            // What it is here is none of the gateway's business.
            let reason = "the executor cannot run it; its log tells why";
            return served.end(Last::Failed(fault(FaultCode::Unreachable, reason)));
        }
    };
    let identity = process.identity();
    served.started(identity.pid());
    let streams = process.streams();
    let (over, mut is_output_over) = oneshot::channel::<()>();
    let (broken, mut is_input_broken) = oneshot::channel::<()>();
    let output = async {
        if let Some(stdout) = streams.stdout {
            read_output(&served, stdout, &*identity).await;
        }
        drop(over);
    };
    let words = async {
        if let Some(stderr) = streams.stderr {
            read_stderr(&served, stderr).await;
        }
    };
    let input = async {
        if let Some(stdin) = streams.stdin {
            write_input(&served, stdin, broken).await;
        }
    };
    let ends = (&mut is_output_over, &mut is_input_broken);
    let keeping = keep(&served, &mut process, &spec, ends);
    let exit = together(&served, keeping, (output, words, input)).await;
    served.output_over();
    served.end(Last::Exited(exit));
}

/// Runs all parts until the process is gone, and what it left is read and taken.
async fn together(
    served: &Served,
    keeping: impl Future<Output = Exit>,
    (output, words, input): (
        impl Future<Output = ()>,
        impl Future<Output = ()>,
        impl Future<Output = ()>,
    ),
) -> Exit {
    let mut keeping = std::pin::pin!(keeping);
    let mut reading = std::pin::pin!(async {
        tokio::join!(output, words);
    });
    let mut input = std::pin::pin!(input);
    let (mut is_read, mut is_fed) = (false, false);
    let exit = loop {
        tokio::select! {
            biased;
            exit = &mut keeping => break exit,
            () = &mut reading, if !is_read => is_read = true,
            () = &mut input, if !is_fed => is_fed = true,
        }
    };
    while !is_read {
        let left = timeout(DRAIN_GRACE, &mut reading).await;
        // What the gateway has not taken yet waits for it; what a descendant holds open does not.
        is_read = left.is_ok() || !served.is_output_held();
    }
    exit
}

/// Waits for the end of the process, and brings it about where that is wanted.
async fn keep(
    served: &Served,
    process: &mut impl Process,
    spec: &StdioSpec,
    (is_output_over, is_input_broken): (&mut oneshot::Receiver<()>, &mut oneshot::Receiver<()>),
) -> Exit {
    enum First {
        Gone(Exit),
        Asked,
        Closed,
    }
    let first = tokio::select! {
        biased;
        exit = process.wait() => First::Gone(exit),
        () = served.hurried(Haste::InOrder) => First::Asked,
        _ = is_output_over => First::Closed,
        Ok(()) = is_input_broken => First::Closed,
    };
    match first {
        First::Gone(exit) => exit,
        First::Asked => stop(served, process, spec).await,
        First::Closed => match timeout(EXIT_GRACE, process.wait()).await {
            Ok(exit) => exit,
            Err(_) => {
                served.output_over();
                stop(served, process, spec).await;
                Exit::Closed
            }
        },
    }
}

/// Stops the process in order, unless there is haste.
async fn stop(served: &Served, process: &mut impl Process, spec: &StdioSpec) -> Exit {
    let gone = tokio::select! {
        biased;
        gone = process.stop(spec.limits) => gone,
        () = served.hurried(Haste::AtOnce) => None,
    };
    match gone {
        Some(exit) => exit,
        None => process.kill().await,
    }
}

/// Writes what comes to the process; its stdin is closed at the end, and when it is to go.
async fn write_input(
    served: &Served,
    mut stdin: impl AsyncWrite + Unpin,
    broken: oneshot::Sender<()>,
) {
    let feeding = async {
        while let Some(piece) = served.input_piece().await {
            if stdin.write_all(&piece).await.is_err() || stdin.flush().await.is_err() {
                // It closed its stdin, and lives on.
                let _ = broken.send(());
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = feeding => {}
        () = served.hurried(Haste::InOrder) => {}
    }
}

/// Reads what the process answers, as far as the gateway takes it.
async fn read_output(served: &Served, mut stdout: impl AsyncRead + Unpin, identity: &dyn Identity) {
    let mut buffer = BytesMut::new();
    let mut is_first = true;
    loop {
        let room = served.output_room().await;
        if room == 0 {
            return;
        }
        buffer.clear();
        buffer.reserve(DATA_BYTES_MAX);
        let mut part = (&mut stdout).take(u64::try_from(room).unwrap_or(u64::MAX));
        if !matches!(part.read_buf(&mut buffer).await, Ok(1..)) {
            return;
        }
        if std::mem::take(&mut is_first) {
            // A reaper has started its server by now.
            served.started(identity.pid());
        }
        served.output(&buffer);
    }
}

/// Reads what the process says beside, whatever becomes of it.
async fn read_stderr(served: &Served, mut stderr: impl AsyncRead + Unpin) {
    let mut chunk = vec![0; STDERR_CHUNK_BYTES];
    while let Ok(length @ 1..) = stderr.read(&mut chunk).await {
        served.stderr(chunk.get(..length).unwrap_or_default());
    }
}
