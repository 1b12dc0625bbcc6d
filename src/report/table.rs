//! Plain tables: columns as wide as their content, split where the page is too narrow.

use std::io::{self, Write};

use super::visible::one_line;

/// A table of text cells. The first column names the row and is left-aligned; the others are
/// right-aligned under a heading of two lines.
#[derive(Default)]
pub(super) struct Table {
    columns: Vec<Column>,
}

struct Column {
    heading: [String; 2],
    cells: Vec<String>,
    /// The ANSI colour of a cell, where it has one.
    paint: Option<Paint>,
}

/// From the text of a cell to the code of an ANSI colour.
pub(super) type Paint = fn(&str) -> Option<u8>;

impl Column {
    fn width(&self) -> usize {
        let texts = self.heading.iter().chain(&self.cells);
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    }
}

impl Table {
    /// Adds a column with its cells from the first row to the last. No text in them acts on what
    /// stands around it.
    pub fn column(&mut self, upper: &str, lower: &str, cells: Vec<String>) {
        self.columns.push(Column {
            heading: [upper, lower].map(one_line),
            cells: cells.iter().map(|cell| one_line(cell)).collect(),
            paint: None,
        });
    }

    /// Adds a column whose cells are painted where colour is asked for.
    pub fn painted_column(&mut self, upper: &str, lower: &str, cells: Vec<String>, paint: Paint) {
        self.column(upper, lower, cells);
        if let Some(column) = self.columns.last_mut() {
            column.paint = Some(paint);
        }
    }

    /// Writes the table in at most `width` characters per line: with one blank between columns
    /// where two do not fit, in several parts where one does not fit either.
    pub fn write(&self, width: usize, color: bool, out: &mut dyn Write) -> io::Result<()> {
        let all: Vec<usize> = (1..self.columns.len()).collect();
        let gap = if self.needed(&all, 2) <= width { 2 } else { 1 };
        for (number, part) in self.parts(width, gap).iter().enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            self.write_part(part, gap, color, out)?;
        }
        Ok(())
    }

    /// The table in Markdown; `escape` makes the text of cells fit. The first column is aligned
    /// left, the others right.
    pub fn markdown(&self, escape: &dyn Fn(&str) -> String) -> String {
        let line = |cell: &dyn Fn(&Column) -> String| {
            let cells: Vec<String> = self.columns.iter().map(cell).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let heading = |column: &Column| {
            let [upper, lower] = &column.heading;
            // A word that the two lines split is one word again.
            let joined = match upper.strip_suffix('-') {
                Some(start) if !start.ends_with(' ') => format!("{start}{lower}"),
                _ => format!("{upper} {lower}"),
            };
            escape(joined.trim())
        };
        let mut text = line(&heading);
        let rules = (0..self.columns.len()).map(|at| if at == 0 { "---|" } else { "--:|" });
        text.push_str(&format!("|{}\n", rules.collect::<String>()));
        for row in 0..self.columns.first().map_or(0, |column| column.cells.len()) {
            let cell = |column: &Column| {
                column
                    .cells
                    .get(row)
                    .map_or_else(String::new, |cell| escape(cell))
            };
            text.push_str(&line(&cell));
        }
        text
    }

    /// Characters of a line that holds the first column and `columns`.
    fn needed(&self, columns: &[usize], gap: usize) -> usize {
        let first = self.columns.first().map_or(0, Column::width);
        columns
            .iter()
            .fold(first, |sum, &at| sum + gap + self.columns[at].width())
    }

    fn parts(&self, width: usize, gap: usize) -> Vec<Vec<usize>> {
        let mut parts: Vec<Vec<usize>> = vec![Vec::new()];
        for at in 1..self.columns.len() {
            let last = parts.len() - 1;
            parts[last].push(at);
            if parts[last].len() > 1 && self.needed(&parts[last], gap) > width {
                parts[last].pop();
                parts.push(vec![at]);
            }
        }
        parts
    }

    fn write_part(
        &self,
        columns: &[usize],
        gap: usize,
        color: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        for line in 0..2 {
            self.write_line(columns, gap, false, out, |column| column.heading.get(line))?;
        }
        for row in 0..self.columns.first().map_or(0, |column| column.cells.len()) {
            self.write_line(columns, gap, color, out, |column| column.cells.get(row))?;
        }
        Ok(())
    }

    fn write_line(
        &self,
        columns: &[usize],
        gap: usize,
        color: bool,
        out: &mut dyn Write,
        text: impl Fn(&Column) -> Option<&String>,
    ) -> io::Result<()> {
        let cell = |column: &Column| text(column).cloned().unwrap_or_default();
        let mut line = self.columns.first().map_or_else(String::new, |first| {
            format!("{:<width$}", cell(first), width = first.width())
        });
        for &at in columns {
            let column = &self.columns[at];
            let cell = cell(column);
            let padded = format!("{cell:>width$}", width = gap + column.width());
            let paint = column.paint.filter(|_| color);
            match paint.and_then(|paint| paint(&cell)) {
                Some(code) => {
                    let blank = padded.strip_suffix(&cell).unwrap_or_default();
                    line.push_str(&format!("{blank}\x1b[{code}m{cell}\x1b[0m"));
                }
                None => line.push_str(&padded),
            }
        }
        writeln!(out, "{}", line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::default();
        table.column("", "recipe", vec!["AF".to_owned(), "RF".to_owned()]);
        table.column("math", "correct", vec!["1/2".to_owned(), "2/2".to_owned()]);
        table.column("nll", "bound", vec!["+1%".to_owned(), "+10%".to_owned()]);
        table
    }

    fn written(width: usize) -> String {
        let mut out = Vec::new();
        table().write(width, false, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn colour_is_around_the_text_and_nowhere_else() {
        let mut table = table();
        let paint: Paint = |cell| (cell == "pass").then_some(32);
        table.painted_column(
            "",
            "verdict",
            vec!["pass".to_owned(), "x".to_owned()],
            paint,
        );
        let written = |color| {
            let mut out = Vec::new();
            table.write(80, color, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let painted = written(true);
        assert!(
            painted.contains("     \x1b[32mpass\x1b[0m\n"),
            "{painted:?}"
        );
        let plain = painted.replace("\x1b[32m", "").replace("\x1b[0m", "");
        assert_eq!(plain, written(false));
    }

    #[test]
    fn wide_narrow_and_split() {
        assert_eq!(
            written(80),
            "           math    nll\n\
             recipe  correct  bound\n\
             AF          1/2    +1%\n\
             RF          2/2   +10%\n"
        );
        assert!(written(20).lines().all(|line| line.len() <= 20));
        let split = written(15);
        assert!(split.lines().all(|line| line.len() <= 15), "{split}");
        assert_eq!(split.matches("recipe").count(), 2);
    }
}
