//! Locates the config file.

use std::path::{Path, PathBuf};

use super::{ConfigError, EnvVars};

/// Name of the config file.
pub const CONFIG_FILE_NAME: &str = "bowline.toml";

/// Locates the config file: `explicit`, else `$BOWLINE_CONFIG`, else the file of the user. The
/// current directory does not count: a repository may contain a config file, which names programs
/// to start.
pub fn find_config(explicit: Option<&Path>, env: &EnvVars) -> Result<PathBuf, ConfigError> {
    if let Some(path) = explicit {
        return Ok(path.to_owned());
    }
    if let Some(path) = env.path("BOWLINE_CONFIG") {
        return Ok(path);
    }
    first_existing(search_paths(env))
}

fn search_paths(env: &EnvVars) -> Vec<PathBuf> {
    let home = env.xdg_directory("XDG_CONFIG_HOME", ".config");
    home.map(|path| path.join(CONFIG_FILE_NAME))
        .into_iter()
        .collect()
}

fn first_existing(paths: Vec<PathBuf>) -> Result<PathBuf, ConfigError> {
    match paths.iter().find(|path| path.exists()) {
        Some(path) => Ok(path.clone()),
        None => Err(ConfigError::NotFound { searched: paths }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicit_path_wins_even_when_missing() {
        let env = EnvVars::from_pairs([("BOWLINE_CONFIG", "/from/env.toml")]);
        assert_eq!(
            find_config(Some(Path::new("/x.toml")), &env).unwrap(),
            Path::new("/x.toml")
        );
        assert_eq!(
            find_config(None, &env).unwrap(),
            Path::new("/from/env.toml")
        );
    }

    #[test]
    fn usual_locations_are_searched_in_order() {
        let env = EnvVars::from_pairs([("XDG_CONFIG_HOME", "/xdg"), ("HOME", "/home/a")]);
        assert_eq!(
            search_paths(&env),
            [PathBuf::from("/xdg/bowline/bowline.toml")]
        );
        let home = EnvVars::from_pairs([("HOME", "/home/a")]);
        assert_eq!(
            search_paths(&home)[0],
            Path::new("/home/a/.config/bowline/bowline.toml")
        );

        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        std::fs::write(&b, "").unwrap();
        assert_eq!(first_existing(vec![a.clone(), b.clone()]).unwrap(), b);
        assert!(matches!(
            first_existing(vec![a]),
            Err(ConfigError::NotFound { searched }) if searched.len() == 1
        ));
    }
}
