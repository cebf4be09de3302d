//! What the kernel can do for a sandbox, found out once.

use std::fmt;

use super::{Level, Net, Sandbox};

/// The Landlock version of the running kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// The ABI; 0 where there is no Landlock.
    pub landlock_abi: u32,
}

/// What a sandbox wants and the kernel does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No Landlock at all: files are open.
    Files,
    /// No rules for TCP ports.
    Ports,
    /// No scopes: signals and abstract sockets reach other processes.
    Scopes,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Files => "no Landlock: files, ports and other processes are open",
            Self::Ports => "Landlock without ports (ABI 4): TCP ports are open",
            Self::Scopes => "Landlock without scopes (ABI 6): signals reach other processes",
        })
    }
}

/// The first version with rules for ports.
const ABI_OF_PORTS: u32 = 4;

/// The first version with scopes.
const ABI_OF_SCOPES: u32 = 6;

impl Kernel {
    /// Asks the running kernel.
    #[must_use]
    pub fn probe() -> Self {
        #[cfg(target_os = "linux")]
        let landlock_abi = super::enforce::landlock_abi();
        #[cfg(not(target_os = "linux"))]
        let landlock_abi = 0;
        Self { landlock_abi }
    }

    /// Returns the worst that this sandbox wants in vain.
    #[must_use]
    pub fn lacks(self, sandbox: &Sandbox) -> Option<Lack> {
        let wants_ports = sandbox.net != Net::Any;
        let abi = self.landlock_abi;
        let lacks = [
            (abi == 0, Lack::Files),
            (abi < ABI_OF_PORTS && wants_ports, Lack::Ports),
            (abi < ABI_OF_SCOPES, Lack::Scopes),
        ];
        let worst = lacks.into_iter().find(|(lacks, _)| *lacks);
        let worst = worst.map(|(_, lack)| lack);
        worst.filter(|_| sandbox.level != Level::Off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_kernel_lacks_what_came_later() {
        let sandbox = Sandbox {
            level: Level::Default,
            ..Sandbox::off()
        };
        let lacks = [0, 3, 5, 6, 7].map(|landlock_abi| Kernel { landlock_abi }.lacks(&sandbox));
        let expected = [
            Some(Lack::Files),
            Some(Lack::Ports),
            Some(Lack::Scopes),
            None,
            None,
        ];
        assert_eq!(lacks, expected);
        assert_eq!(Kernel::default().lacks(&Sandbox::off()), None);
    }
}
