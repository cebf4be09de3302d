//! Names of tests: `unit_condition_outcome` in a few words.

use super::behaviours::is_security_test;
use super::code_items::function_signatures;
use super::{SourceFile, SourceTree, TidyFinding};

const WORDS_MAX: usize = 8;

/// The id of `sec_NN_…` counts as two words.
const SECURITY_WORDS_MAX: usize = 10;

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    tree.rust.iter().flat_map(check_file).collect()
}

fn check_file(source: &SourceFile) -> Vec<TidyFinding> {
    let functions = function_signatures(&source.code).into_iter();
    let tests = functions.filter(|function| function.is_test);
    tests
        .filter_map(|test| {
            let name = test.name;
            let max = if is_security_test(name) {
                SECURITY_WORDS_MAX
            } else {
                WORDS_MAX
            };
            let words = name.split('_').filter(|word| !word.is_empty()).count();
            let message = format!("`{name}` has {words} words, {max} at most");
            let finding = TidyFinding::error("test-name", source.path(), test.line + 1, message);
            (words > max).then_some(finding)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_findings(text: &str) -> usize {
        check_tree(&SourceTree::from_pairs(&[("crates/x/tests/a.rs", text)])).len()
    }

    #[test]
    fn test_name_of_nine_words_is_rejected() {
        assert_eq!(count_findings("#[test]\nfn a_b_c_d_e_f_g_h() {}\n"), 0);
        assert_eq!(count_findings("#[test]\nfn a_b_c_d_e_f_g_h_i() {}\n"), 1);
        let tokio = "#[tokio::test(start_paused = true)]\nasync fn a_b_c_d_e_f_g_h_i() {}\n";
        assert_eq!(count_findings(tokio), 1);
    }

    #[test]
    fn security_id_allows_two_more_words() {
        assert_eq!(
            count_findings("#[test]\nfn sec_07_c_d_e_f_g_h_i_j() {}\n"),
            0
        );
        assert_eq!(
            count_findings("#[test]\nfn sec_07_c_d_e_f_g_h_i_j_k() {}\n"),
            1
        );
    }

    #[test]
    fn helper_of_tests_may_be_longer() {
        assert_eq!(count_findings("fn a_b_c_d_e_f_g_h_i() {}\n"), 0);
    }
}
