//! The declaration of a table: keys, kinds of values and purposes. The readers match the declared
//! keys exhaustively, problems suggest a declared key, and the reference lists every key.

/// Keys of a table with fixed keys.
pub(super) trait TableKey: Copy + PartialEq + 'static {
    /// The keys, in the order of problems and of the reference.
    const KEYS: &'static [KeyDeclaration<Self>];
    /// Purpose of the table.
    const PURPOSE: &'static str;
    /// Names that a later version will know.
    const PLANNED: &'static [&'static str];

    /// Returns the key of a name.
    fn from_name(name: &str) -> Option<Self> {
        let declared = Self::KEYS.iter().find(|key| key.name == name);
        declared.map(|key| key.key)
    }

    /// Returns the name of the key.
    fn name(self) -> &'static str {
        let declared = Self::KEYS.iter().find(|key| key.key == self);
        declared.map_or("", |key| key.name)
    }
}

/// One key of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyDeclaration<K> {
    pub(super) key: K,
    /// The name in the file.
    pub(super) name: &'static str,
    /// Kind of the value, in words.
    pub(super) takes: &'static str,
    /// Purpose of the key.
    pub(super) purpose: &'static str,
}

/// Declares the keys of a table as an enum: for each key the purpose as a doc comment, a variant,
/// the name in the file, and the kind of the value.
macro_rules! config_table {
    (
        #[doc = $table_doc:literal]
        $visibility:vis enum $table:ident {
            $( #[doc = $doc:literal] $key:ident = $name:literal takes $takes:literal, )+
        }
        $( planned { $($planned:literal),+ } )?
    ) => {
        #[doc = $table_doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $table {
            $( #[doc = $doc] $key, )+
        }

        impl $crate::file::config_table::TableKey for $table {
            const KEYS: &'static [$crate::file::config_table::KeyDeclaration<Self>] = &[
                $( $crate::file::config_table::KeyDeclaration {
                    key: Self::$key,
                    name: $name,
                    takes: $takes,
                    purpose: $doc.trim_ascii(),
                }, )+
            ];
            const PURPOSE: &'static str = $table_doc;
            const PLANNED: &'static [&'static str] = &[ $( $($planned),+ )? ];
        }
    };
}
pub(super) use config_table;
