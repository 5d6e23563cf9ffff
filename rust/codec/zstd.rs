//! Zstandard: frames one after another, with skippable ones among them.
//!
//! Frames are divided here into headers, blocks and checksums, and the library gets one of these at a time. Where it
//! finds damage it returns nothing of what it inflated in the same call, so that otherwise the text before the damage
//! would depend on how the file is read. It also tells how large a window must be before the memory is taken, and lets
//! whole frames be skipped.

use std::alloc::{Layout, handle_alloc_error};

use zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, get_error_name, is_error_kind};

use super::{Damage, Input};

/// The first bytes of each frame with content.
pub const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The window that is always accepted: what the `zstd` command accepts without `--long`.
const USUAL_WINDOW: u64 = 128 << 20;
/// The largest one that the library takes, as a power of two.
const LARGEST_WINDOW_LOG: u32 = 31;
const CHECKSUM_BYTES: usize = 4;

/// Whether a file begins with a frame that holds no content.
pub fn is_skippable(head: &[u8]) -> bool {
    matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// A chain of frames.
pub(super) struct Zstd {
    context: DCtx<'static>,
    /// The largest accepted window, in bytes.
    largest_window: u64,
    next: Part,
    frame: Frame,
    /// The bytes of a header or checksum that were read so far.
    head: Vec<u8>,
    /// `context` may hold inflated bytes for which `out` had no room.
    is_full: bool,
    /// Headers are read alone, as what follows them will be skipped.
    is_skipping: bool,
    inflated: u64,
}

/// The part of the file that comes next.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Part {
    #[default]
    Frame,
    BlockHeader,
    Content {
        left: usize,
        is_raw: bool,
        is_last: bool,
    },
    Checksum,
}

/// The current frame.
#[derive(Default, Clone, Copy)]
struct Frame {
    /// Its offset in the file, and bytes inflated before it.
    start: u64,
    inflated_start: u64,
    /// Number of bytes that it inflates to, if its header has it.
    content: Option<u64>,
    window: u64,
    has_dictionary: bool,
    has_checksum: bool,
}

/// A frame that was looked for. Skippable frames count as the start of the frame after them.
#[derive(Default)]
pub(super) struct FrameStart {
    /// Its offset, or the end of the file.
    pub(super) offset: u64,
    /// The offset of the frame before it.
    pub(super) before: u64,
    /// The file has no frame but the one before it.
    pub(super) is_alone: bool,
}

impl Zstd {
    /// Accepts windows as large as the longest record.
    pub(super) fn new(longest: u64) -> Self {
        Self {
            context: DCtx::create(),
            largest_window: longest.clamp(USUAL_WINDOW, 1 << LARGEST_WINDOW_LOG),
            next: Part::default(),
            frame: Frame::default(),
            head: Vec::new(),
            is_full: false,
            is_skipping: false,
            inflated: 0,
        }
    }

    /// Starts anew, elsewhere in the file.
    pub(super) fn restart(&mut self) {
        *self = Self::new(self.largest_window);
    }

    /// Inflates into `out`. Returns 0 at the end, and before a frame that starts at `end` or after it.
    pub(super) fn read(&mut self, input: &mut Input, end: u64, out: &mut [u8]) -> Result<usize, Damage> {
        loop {
            let written = if self.is_full { self.inflate(&[], out)?.1 } else { self.advance(input, out)? };
            if written > 0 {
                return Ok(written);
            }
            if self.next == Part::Frame
                && !self.is_full
                && (input.offset() >= end || !self.open_frame(input)?)
            {
                return Ok(0);
            }
        }
    }

    /// Skips at most `most` inflated bytes: frames that follow one another, start before `end`, and whose headers have
    /// their size.
    pub(super) fn skip(&mut self, input: &mut Input, end: u64, most: u64) -> Result<u64, String> {
        if self.next == Part::Checksum && !self.is_full {
            self.check(input)?;
        }
        self.is_skipping = true;
        let skipped = self.skip_frames(input, end, most);
        self.is_skipping = false;
        skipped
    }

    fn skip_frames(&mut self, input: &mut Input, end: u64, most: u64) -> Result<u64, String> {
        let mut skipped = 0;
        while self.next == Part::Frame
            && !self.is_full
            && input.offset() < end
            && self.read_frame_header(input)?
        {
            match self.frame.content {
                Some(content) if content <= most - skipped => {
                    self.skip_blocks(input)?;
                    self.inflated += content;
                    skipped += content;
                }
                _ => self.begin_frame()?,
            }
        }
        Ok(skipped)
    }

    /// Goes from the start of a file to the first frame at `start` or after it, by the headers of blocks.
    pub(super) fn find_frame(&mut self, input: &mut Input, start: u64) -> Result<FrameStart, String> {
        self.is_skipping = true;
        let (mut found, mut frames) = (FrameStart::default(), 0);
        loop {
            found.offset = input.offset();
            if found.offset >= start || !self.read_frame_header(input)? {
                break;
            }
            found.before = found.offset;
            frames += 1;
            self.skip_blocks(input)?;
        }
        found.is_alone = frames == 1 && matches!(self.read_frame_header(input), Ok(false));
        Ok(found)
    }

    /// How many frames with content the file has, by the headers of blocks.
    pub(super) fn count_frames(&mut self, input: &mut Input) -> Result<u64, String> {
        self.is_skipping = true;
        let mut frames = 0;
        while self.read_frame_header(input)? {
            self.skip_blocks(input)?;
            frames += 1;
        }
        Ok(frames)
    }

    /// Handles the next part of a frame, and returns the bytes inflated.
    fn advance(&mut self, input: &mut Input, out: &mut [u8]) -> Result<usize, String> {
        match self.next {
            Part::Frame => {}
            Part::BlockHeader => {
                self.next = self.read_block_header(input)?;
                let head = std::mem::take(&mut self.head);
                self.inflate(&head, out)?;
                self.head = head;
            }
            Part::Content { left, is_raw, is_last } => {
                let most = if is_raw { self.sound_bytes(left) } else { left };
                let chunk = input.fill()?;
                if chunk.is_empty() {
                    return Err(self.truncated(input));
                }
                let (read, written) = self.inflate(&chunk[..chunk.len().min(most)], out)?;
                input.consume(read);
                self.next = self.after_content(left - read, is_raw, is_last);
                return Ok(written);
            }
            Part::Checksum => self.check(input)?,
        }
        Ok(0)
    }

    /// How much of the rest of a raw block, which the library returns as it comes, can be passed on without an error. All
    /// errors are found at the block's last byte and at the first one after the content's size.
    fn sound_bytes(&self, left: usize) -> usize {
        let content = self.frame.content.unwrap_or(u64::MAX);
        let content_left = content.saturating_sub(self.inflated - self.frame.inflated_start);
        (left - 1).min(usize::try_from(content_left).unwrap_or(usize::MAX)).max(1)
    }

    /// Begins the next frame with content; returns whether there is one.
    fn open_frame(&mut self, input: &mut Input) -> Result<bool, String> {
        let is_open = self.read_frame_header(input)?;
        if is_open {
            self.begin_frame()?;
        }
        Ok(is_open)
    }

    /// Reads the header of the next frame with content; returns whether there is one.
    fn read_frame_header(&mut self, input: &mut Input) -> Result<bool, String> {
        loop {
            self.frame = Frame { start: input.offset(), inflated_start: self.inflated, ..Frame::default() };
            self.head.clear();
            let is_whole = self.gather(input, MAGIC.len())?;
            if !is_whole && self.head.is_empty() {
                return Ok(false);
            }
            if is_skippable(&self.head) {
                if !self.gather(input, 8)? || !input.skip(little_endian(&self.head[4..])) {
                    return Err(self.truncated(input));
                }
                continue;
            }
            // A file that ends here may end in either kind of frame.
            if !is_whole && (MAGIC.starts_with(&self.head) || (0x50..=0x5f).contains(&self.head[0])) {
                return Err(self.truncated(input));
            }
            if self.head != MAGIC {
                return Err(trailing_bytes(self.head[0], self.frame.start));
            }
            if !self.gather(input, MAGIC.len() + 1)? {
                return Err(self.truncated(input));
            }
            if !self.gather(input, frame_header_bytes(self.head[4]))? {
                return Err(self.truncated(input));
            }
            self.frame.parse(&self.head);
            return Ok(true);
        }
    }

    /// Passes the frame's header on.
    fn begin_frame(&mut self) -> Result<(), String> {
        let Frame { window, has_dictionary, .. } = self.frame;
        if has_dictionary {
            return Err(format!(
                "expected a Zstandard frame without a dictionary, found one that needs a dictionary{}; inflate the shard \
                 with zstd -d -D DICTIONARY, and compress it again without",
                self.place()
            ));
        }
        if window > self.largest_window {
            let advice = if window <= 1 << LARGEST_WINDOW_LOG {
                format!("set max_document_bytes={window} or more to read it, or ")
            } else {
                String::new()
            };
            return Err(format!(
                "expected a Zstandard window of at most {} bytes, found one of {window}, which would take as much memory in \
                 each lane{}; {advice}compress the shard again without --long or with --long=27",
                self.largest_window,
                self.place()
            ));
        }
        if window > USUAL_WINDOW {
            let set = self.context.set_parameter(DParameter::WindowLogMax(LARGEST_WINDOW_LOG));
            set.map_err(|code| self.corrupt(code))?;
        }
        let head = std::mem::take(&mut self.head);
        // Alone, because the library would otherwise inflate a small frame as a whole.
        self.inflate(&head, &mut [])?;
        self.head = head;
        self.is_full = false;
        self.next = Part::BlockHeader;
        Ok(())
    }

    /// Reads the header of a block, and returns what follows it.
    fn read_block_header(&mut self, input: &mut Input) -> Result<Part, String> {
        self.head.clear();
        if !self.gather(input, 3)? {
            return Err(self.truncated(input));
        }
        let header = little_endian(&self.head);
        let kind = header >> 1 & 3;
        // A block of one repeated byte holds it once.
        let left = if kind == 1 { 1 } else { header as usize >> 3 };
        Ok(self.after_content(left, kind == 0, header & 1 == 1))
    }

    /// The part that follows when `left` bytes of a block's content are left.
    fn after_content(&self, left: usize, is_raw: bool, is_last: bool) -> Part {
        match (left, is_last) {
            (1.., _) => Part::Content { left, is_raw, is_last },
            (0, false) => Part::BlockHeader,
            (0, true) if self.frame.has_checksum => Part::Checksum,
            (0, true) => Part::Frame,
        }
    }

    fn check(&mut self, input: &mut Input) -> Result<(), String> {
        self.head.clear();
        if !self.gather(input, CHECKSUM_BYTES)? {
            return Err(self.truncated(input));
        }
        let head = std::mem::take(&mut self.head);
        self.inflate(&head, &mut [])?;
        self.head = head;
        self.is_full = false;
        self.next = Part::Frame;
        Ok(())
    }

    /// Skips the rest of a frame, after its header, without inflating it.
    fn skip_blocks(&mut self, input: &mut Input) -> Result<(), String> {
        loop {
            let (length, next) = match self.read_block_header(input)? {
                Part::Content { left, is_raw, is_last } => (left, self.after_content(0, is_raw, is_last)),
                next => (0, next),
            };
            let checksum = if next == Part::Checksum { CHECKSUM_BYTES } else { 0 };
            if !input.skip((length + checksum) as u64) {
                return Err(self.truncated(input));
            }
            if next != Part::BlockHeader {
                return Ok(());
            }
        }
    }

    /// Appends to `head` until it has `wanted` bytes; returns whether the file has as many.
    fn gather(&mut self, input: &mut Input, wanted: usize) -> Result<bool, String> {
        while self.head.len() < wanted {
            let missing = wanted - self.head.len();
            let chunk = if self.is_skipping { input.fill_at_most(missing)? } else { input.fill()? };
            let taken = chunk.len().min(missing);
            self.head.extend_from_slice(&chunk[..taken]);
            input.consume(taken);
            if taken == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Passes bytes of one part of a frame on. Returns how many were consumed and inflated.
    fn inflate(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<(usize, usize), String> {
        let mut input = InBuffer::around(bytes);
        let room = out.len();
        let mut output = OutBuffer::around(out);
        let result = self.context.decompress_stream(&mut output, &mut input);
        let (read, written) = (input.pos(), output.pos());
        if let Err(code) = result {
            return Err(self.corrupt(code));
        }
        self.inflated += written as u64;
        self.is_full = written == room;
        Ok((read, written))
    }

    /// The message for an error of the library.
    fn corrupt(&self, code: usize) -> String {
        abort_without_memory(code, self.frame.window);
        if is_error_kind(code, ZSTD_ErrorCode::ZSTD_error_checksum_wrong) {
            return format!(
                "expected the checksum of the Zstandard frame, found another one: some text after byte {} of the \
                 inflated shard is wrong{}{DOWNLOAD}",
                self.frame.inflated_start,
                self.place()
            );
        }
        let error = get_error_name(code);
        format!("expected valid Zstandard data, found corrupt data ({error}){}{DOWNLOAD}", self.place())
    }

    fn truncated(&self, input: &Input) -> String {
        format!(
            "expected more Zstandard data, found the end of the file at byte {}: the file is truncated{}{DOWNLOAD}",
            input.offset(),
            self.place()
        )
    }

    fn place(&self) -> String {
        format!(" (in the Zstandard frame at byte {} of the file)", self.frame.start)
    }
}

/// Ends the process, as for any other memory, if the library got none: that is no fault of the shard.
pub(super) fn abort_without_memory(code: usize, window: u64) {
    if is_error_kind(code, ZSTD_ErrorCode::ZSTD_error_memory_allocation) {
        let window = Layout::array::<u8>(window as usize);
        handle_alloc_error(window.unwrap_or_else(|_| Layout::new::<u8>()));
    }
}

const DOWNLOAD: &str = "; download the shard again";

impl Frame {
    /// Takes in a whole header, as RFC 8878 describes it.
    fn parse(&mut self, header: &[u8]) {
        let descriptor = header[4];
        let (window_bytes, dictionary_bytes, content_bytes) = field_bytes(descriptor);
        let (window, rest) = header[5..].split_at(window_bytes);
        let (dictionary, content) = rest.split_at(dictionary_bytes);
        let offset = if content_bytes == 2 { 256 } else { 0 };
        self.content = (content_bytes > 0).then(|| little_endian(content) + offset);
        self.window = match window {
            [window] => {
                let base = 1 << (10 + (window >> 3));
                base + base / 8 * u64::from(window & 7)
            }
            // A single segment, which is its own window.
            _ => self.content.unwrap_or_default(),
        };
        self.has_dictionary = little_endian(dictionary) > 0;
        self.has_checksum = descriptor & 4 > 0;
    }
}

/// The length of a frame's header with this descriptor.
fn frame_header_bytes(descriptor: u8) -> usize {
    let (window, dictionary, content) = field_bytes(descriptor);
    MAGIC.len() + 1 + window + dictionary + content
}

/// The lengths of a header's fields: window, dictionary and content size.
fn field_bytes(descriptor: u8) -> (usize, usize, usize) {
    let is_single_segment = descriptor & 0x20 > 0;
    let content = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        size => 1 << size,
    };
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    (usize::from(!is_single_segment), dictionary, content)
}

/// At most 8 bytes as a number.
fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn trailing_bytes(byte: u8, offset: u64) -> String {
    format!(
        "expected the end of the file or another Zstandard frame after byte {offset} of the file, found byte \
         0x{byte:02x}; download the shard again, or if no data follows there, truncate the file to {offset} bytes"
    )
}
