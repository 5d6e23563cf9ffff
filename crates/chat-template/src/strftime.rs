//! `strftime_now`: a fixed moment, printed as C's `strftime` does it in the C locale.

use crate::error::{Error, Result};

/// A moment without a time zone, as `datetime.now()` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DateTime {
    year: i32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

fn is_leap(year: i32) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

fn days_in(year: i32, month: u32) -> u32 {
    match month {
        2 => 28 + u32::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl DateTime {
    /// A moment of the years 1000 to 9999; `None` if there is no such moment.
    pub fn new(year: i32, month: u32, day: u32, hour: u32, minute: u32, second: u32) -> Option<Self> {
        let is_date = (1000..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day);
        let is_time = hour < 24 && minute < 60 && second < 60;
        (is_date && is_time).then_some(Self { year, month, day, hour, minute, second })
    }

    /// Reads `2026-11-26`, `2026-11-26 12:00` or `2026-11-26T12:00:00`.
    ///
    /// ```
    /// use gristmill_chat_template::DateTime;
    /// assert_eq!(DateTime::parse("2026-11-26"), DateTime::new(2026, 11, 26, 0, 0, 0));
    /// assert_eq!(DateTime::parse("tomorrow"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let (date, time) = match text.split_once(['T', ' ']) {
            Some((date, time)) => (date, time),
            None => (text, "00:00:00"),
        };
        let number = |text: &str, digits: usize| {
            (text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit()))
                .then(|| text.parse::<u32>().ok())
                .flatten()
        };
        let mut date = date.split('-');
        let (year, month, day) =
            (number(date.next()?, 4)?, number(date.next()?, 2)?, number(date.next()?, 2)?);
        let mut time = time.split(':');
        let (hour, minute) = (number(time.next()?, 2)?, number(time.next()?, 2)?);
        let second = time.next().map_or(Some(0), |second| number(second, 2))?;
        if date.next().is_some() || time.next().is_some() {
            return None;
        }
        Self::new(year as i32, month, day, hour, minute, second)
    }

    /// The day of the year, from 0.
    fn day_of_year(&self) -> u32 {
        (1..self.month).map(|month| days_in(self.year, month)).sum::<u32>() + self.day - 1
    }

    /// The day of the week, from 0 for Sunday.
    fn weekday(&self) -> u32 {
        let before = self.year - 1;
        let days = before * 365 + before / 4 - before / 100 + before / 400 + self.day_of_year() as i32;
        ((days + 1) % 7) as u32
    }

    /// The year and the week of ISO 8601.
    fn iso_week(&self) -> (i32, u32) {
        let monday_based = (self.weekday() + 6) % 7;
        // The week belongs to the year that its Thursday is in.
        let thursday = self.day_of_year() as i32 + 3 - monday_based as i32;
        let days = |year: i32| 365 + i32::from(is_leap(year));
        if thursday < 0 {
            return (self.year - 1, ((thursday + days(self.year - 1)) / 7 + 1) as u32);
        }
        if thursday >= days(self.year) {
            return (self.year + 1, 1);
        }
        (self.year, (thursday / 7 + 1) as u32)
    }
}

/// The moment in a format.
pub(crate) fn strftime(now: &DateTime, format: &str) -> Result<String> {
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let mut flag = None;
        let mut directive = chars.next();
        if let Some(c @ ('-' | '_' | '0')) = directive {
            flag = Some(c);
            directive = chars.next();
        }
        let Some(directive) = directive else {
            return Err(Error::unsupported("a date format that ends in %"));
        };
        push_directive(now, directive, flag, &mut text)?;
    }
    Ok(text)
}

fn push_directive(now: &DateTime, directive: char, flag: Option<char>, text: &mut String) -> Result<()> {
    let hour12 = match now.hour % 12 {
        0 => 12,
        hour => hour,
    };
    let composed = |format: &str| strftime(now, format);
    // A number, how many digits it has, and what fills them.
    let (number, width, fill) = match directive {
        'd' => (now.day, 2, '0'),
        'e' => (now.day, 2, ' '),
        'm' => (now.month, 2, '0'),
        'y' => (now.year as u32 % 100, 2, '0'),
        'Y' => (now.year as u32, 4, '0'),
        'C' => (now.year as u32 / 100, 2, '0'),
        'G' => (now.iso_week().0 as u32, 4, '0'),
        'g' => (now.iso_week().0 as u32 % 100, 2, '0'),
        'V' => (now.iso_week().1, 2, '0'),
        'U' => ((now.day_of_year() + 7 - now.weekday()) / 7, 2, '0'),
        'W' => ((now.day_of_year() + 7 - (now.weekday() + 6) % 7) / 7, 2, '0'),
        'H' => (now.hour, 2, '0'),
        'k' => (now.hour, 2, ' '),
        'I' => (hour12, 2, '0'),
        'l' => (hour12, 2, ' '),
        'M' => (now.minute, 2, '0'),
        'S' => (now.second, 2, '0'),
        'j' => (now.day_of_year() + 1, 3, '0'),
        'w' => (now.weekday(), 1, '0'),
        'u' => ((now.weekday() + 6) % 7 + 1, 1, '0'),
        _ if flag.is_some() => {
            return Err(Error::unsupported(format!("the date format %{}{directive}", flag.unwrap_or(' '))));
        }
        _ => {
            let weekday = DAYS[now.weekday() as usize];
            let month = MONTHS[now.month as usize - 1];
            match directive {
                'a' => text.push_str(&weekday[..3]),
                'A' => text.push_str(weekday),
                'b' | 'h' => text.push_str(&month[..3]),
                'B' => text.push_str(month),
                'p' => text.push_str(if now.hour < 12 { "AM" } else { "PM" }),
                'P' => text.push_str(if now.hour < 12 { "am" } else { "pm" }),
                'c' => text.push_str(&composed("%a %b %e %H:%M:%S %Y")?),
                'D' | 'x' => text.push_str(&composed("%m/%d/%y")?),
                'F' => text.push_str(&composed("%Y-%m-%d")?),
                'R' => text.push_str(&composed("%H:%M")?),
                'r' => text.push_str(&composed("%I:%M:%S %p")?),
                'T' | 'X' => text.push_str(&composed("%H:%M:%S")?),
                'f' => text.push_str("000000"),
                'z' | 'Z' => {}
                'n' => text.push('\n'),
                't' => text.push('\t'),
                '%' => text.push('%'),
                _ => return Err(Error::unsupported(format!("the date format %{directive}"))),
            }
            return Ok(());
        }
    };
    let fill = match flag {
        Some('-') => None,
        Some('_') => Some(' '),
        Some(_) => Some('0'),
        None => Some(fill),
    };
    let digits = number.to_string();
    if let Some(fill) = fill {
        text.extend(std::iter::repeat_n(fill, usize::saturating_sub(width, digits.len())));
    }
    text.push_str(&digits);
    Ok(())
}
