//! Where the config file stands.

use std::path::{Path, PathBuf};

use super::{Env, Error};

/// The name looked for in every place.
pub(crate) const FILE_NAME: &str = "bowline.toml";

/// `explicit`, else `$BOWLINE_CONFIG`, else the file of the user. Never the one of the current
/// directory: a repository may bring that, and programs are started by what it says.
pub fn find(explicit: Option<&Path>, env: &Env) -> Result<PathBuf, Error> {
    if let Some(path) = explicit {
        return Ok(path.to_owned());
    }
    if let Some(path) = env.path("BOWLINE_CONFIG") {
        return Ok(path);
    }
    first(places(env))
}

fn places(env: &Env) -> Vec<PathBuf> {
    let home = env.directory("XDG_CONFIG_HOME", ".config");
    home.map(|path| path.join(FILE_NAME)).into_iter().collect()
}

fn first(places: Vec<PathBuf>) -> Result<PathBuf, Error> {
    match places.iter().find(|place| place.exists()) {
        Some(place) => Ok(place.clone()),
        None => Err(Error::NotFound { searched: places }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_named_wins_even_when_it_is_missing() {
        let env = Env::of([("BOWLINE_CONFIG", "/from/env.toml")]);
        assert_eq!(
            find(Some(Path::new("/x.toml")), &env).unwrap(),
            Path::new("/x.toml")
        );
        assert_eq!(find(None, &env).unwrap(), Path::new("/from/env.toml"));
    }

    #[test]
    fn the_usual_places_are_asked_in_order() {
        let env = Env::of([("XDG_CONFIG_HOME", "/xdg"), ("HOME", "/home/a")]);
        assert_eq!(places(&env), [PathBuf::from("/xdg/bowline/bowline.toml")]);
        let home = Env::of([("HOME", "/home/a")]);
        assert_eq!(
            places(&home)[0],
            Path::new("/home/a/.config/bowline/bowline.toml")
        );

        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        std::fs::write(&b, "").unwrap();
        assert_eq!(first(vec![a.clone(), b.clone()]).unwrap(), b);
        assert!(matches!(first(vec![a]), Err(Error::NotFound { searched }) if searched.len() == 1));
    }
}
