//! Landlock support of the kernel, probed once.

use std::fmt;

use super::{NetAccess, SandboxLevel, SandboxPolicy};

/// Landlock version of the running kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LandlockSupport {
    /// ABI version; 0 without Landlock.
    pub landlock_abi: u32,
}

/// Protection that a policy needs and the kernel lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LandlockGap {
    /// No Landlock: files are not protected.
    Files,
    /// No rules for TCP ports.
    Ports,
    /// No scopes: signals and abstract sockets reach unrelated processes.
    Scopes,
}

impl fmt::Display for LandlockGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Files => "no Landlock: files, ports and other processes are open",
            Self::Ports => "Landlock without ports (ABI 4): TCP ports are open",
            Self::Scopes => "Landlock without scopes (ABI 6): signals reach other processes",
        })
    }
}

/// First ABI with port rules.
const PORTS_ABI_MIN: u32 = 4;

/// First ABI with scopes.
const SCOPES_ABI_MIN: u32 = 6;

impl LandlockSupport {
    /// Probes the running kernel; finds nothing without the feature `sandbox`.
    #[must_use]
    pub fn probe() -> Self {
        #[cfg(all(target_os = "linux", feature = "sandbox"))]
        let landlock_abi = super::enforce::probe_landlock_abi();
        #[cfg(not(all(target_os = "linux", feature = "sandbox")))]
        let landlock_abi = 0;
        Self { landlock_abi }
    }

    /// Returns the most severe gap for a policy.
    #[must_use]
    pub fn find_gap(self, sandbox: &SandboxPolicy) -> Option<LandlockGap> {
        let wants_ports = sandbox.net != NetAccess::Any;
        let abi = self.landlock_abi;
        let lacks = [
            (abi == 0, LandlockGap::Files),
            (abi < PORTS_ABI_MIN && wants_ports, LandlockGap::Ports),
            (abi < SCOPES_ABI_MIN, LandlockGap::Scopes),
        ];
        let worst = lacks.into_iter().find(|(lacks, _)| *lacks);
        let worst = worst.map(|(_, lack)| lack);
        worst.filter(|_| sandbox.level != SandboxLevel::Off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_kernel_reports_landlock_gap() {
        let sandbox = SandboxPolicy {
            level: SandboxLevel::Default,
            ..SandboxPolicy::allow_all()
        };
        let lacks =
            [0, 3, 5, 6, 7].map(|landlock_abi| LandlockSupport { landlock_abi }.find_gap(&sandbox));
        let expected = [
            Some(LandlockGap::Files),
            Some(LandlockGap::Ports),
            Some(LandlockGap::Scopes),
            None,
            None,
        ];
        assert_eq!(lacks, expected);
        assert_eq!(
            LandlockSupport::default().find_gap(&SandboxPolicy::allow_all()),
            None
        );
    }
}
