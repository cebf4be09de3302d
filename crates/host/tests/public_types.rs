//! Every type that the public functions and fields of the library name has a name in the library:
//! this file uses no other path.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::any::type_name;

use bowline_host as host;

/// Lists the names of types; the compiler resolves each path.
macro_rules! named_types {
    ($($path:ty),* $(,)?) => { vec![$(type_name::<$path>()),*] };
}

fn setting_types() -> Vec<&'static str> {
    named_types![
        host::AgentRun,
        host::Backoff,
        host::BreakerPolicy,
        host::Bytes,
        host::Effect,
        host::Era,
        host::EraSetting,
        host::HostLimits,
        host::PeerRole,
        host::PinAcceptance,
        host::RestartPolicy,
        host::ResultSecrets,
        host::budget::BudgetRule,
        host::cache::CacheLimits,
        host::cache::CacheView,
        host::lane::KeyChannel,
        host::lane::KeyScope,
        host::lane::QueuePolicy,
        host::load::LoadTotals,
        host::load::LoadView,
        host::log_level::LogLevel,
        host::pins::PinMode,
        host::rate_limiter::RateDecision,
        host::rate_limiter::RateLimits,
        host::rate_limiter::RequestCost,
        host::redact::Redactor,
        host::secret_header::SecretHeader,
        host::server_card::ServerCard,
        host::shares::ShareLimits,
        host::spec::ChildLimits,
        host::spec::ChildSpec,
        host::spec::ExecutorRoute,
        host::spec::Isolation,
        host::spec::RemoteSpec,
        host::spec::SandboxPolicy,
        host::spec::ServerTransport,
        host::spec::ToolRule,
    ]
}

fn call_types() -> Vec<&'static str> {
    named_types![
        host::CallError,
        host::CallReply,
        host::CallRequest,
        host::EndpointScope,
        host::ExecutionStatus,
        host::FailureClass,
        host::FailureOrigin,
        host::Principal,
        host::Route,
        host::breaker::HealthSignal,
        host::call::CallSubject,
        host::call::ServerResponse,
        host::client_handle::SessionKey,
        host::error::FailureReport,
        host::policy::ConditionError,
        host::policy::ConditionInput<'static>,
        host::policy::CredentialContexts,
        host::policy::EvaluationEffort,
        host::policy::ExposeMode,
        host::task_table::LinkKey,
        host::time::CallDeadline,
        host::time::MonotonicTime,
        host::trace::CallTrace,
        dyn host::client_handle::ClientHandle,
    ]
}

fn port_types() -> Vec<&'static str> {
    named_types![
        host::ClockReading,
        host::CredentialError,
        host::HttpEndpoint,
        host::JournalError,
        host::MemoryJournal,
        host::NoCredentials,
        host::SystemClock,
        host::TaskTracker,
        host::journal::JournalHealth,
        host::journal::audit::AuditRow<'static>,
        host::journal::audit::AuditRowKind,
        host::link::ClientInfo,
        host::link::EraNegotiation,
        host::link::GatewayInstance,
        host::link::LinkConnectError,
        host::link::LinkError,
        host::link::LogLine,
        host::link::ProcessSet,
        host::link::StderrLog,
        host::link::StdioLimits,
        host::link::http::HttpLimits,
        host::link::http::HttpTransport,
        host::link::http::upstream_credentials::HeaderName,
        host::link::http::upstream_credentials::HeaderValue,
        host::link::sandbox::ReaperLauncher,
        host::runtime::fifo_watch::FifoReceiver<host::supervisor::ServerState>,
        dyn host::AccessGuard,
        dyn host::Clock,
        dyn host::Journal,
        dyn host::UpstreamCredentials,
        dyn host::audit::AuditSink,
        dyn host::link::Link,
        dyn host::manifest::ManifestStore,
        dyn host::pins::PinStore,
        dyn host::ports::NotificationSink,
        dyn host::spec::PeerConnector,
        dyn host::supervisor::Dial,
    ]
}

#[test]
fn public_api_names_its_own_types() {
    let names = [setting_types(), call_types(), port_types()].concat();
    let own = names.iter().filter(|name| name.contains("bowline_"));
    // `Bytes` and the two types of headers come from elsewhere.
    assert_eq!(own.count() + 3, names.len());
}
