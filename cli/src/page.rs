//! What all pages that this program writes have in common: one file that needs no network, in the
//! reader's colours, readable on a telephone and from a keyboard.
//!
//! Neighbours: `compare/page.rs`; `run/trace/page.rs`.

/// The start of every page, up to its own style.
const HEAD: &str = include_str!("page.css");

/// A whole page. `title` is text; the others are HTML and CSS.
pub(crate) fn page(title: &str, style: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n\
         <style>\n{HEAD}{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
}

/// Text as HTML has it, also in attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(escape("<a href='x'>&\""), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
        assert!(page("<x>", "", "").contains("<title>&lt;x&gt;</title>"));
    }

    #[test]
    fn pages_need_no_network() {
        let page = page("t", "", "");
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("@import"));
    }
}
