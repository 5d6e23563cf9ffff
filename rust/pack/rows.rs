//! The elements of a row: one routine for each content that a field may have, whatever the layout.
//!
//! ```text
//! document             a b c d e E                b and E are not trained on, the row ends after d
//! ids (Token)          a b c d
//! Target               b c d e                    of d: what follows in the next row
//! TargetSegment        0 1 1 1                    the target of a is not trained on
//! Label                - - c d                    a has nothing before it, b is not trained on
//! Trained              1 0 1 1
//! TargetMask           0 1 1 1
//! SegmentLength        4 0 0
//! NextToken            e
//! ```
//!
//! Values of fields go where the ids are that they belong to, as bytes.

use std::ops::Range;

use super::tokens::{Token, TokenSlice};
use crate::batch::ring::RowMut;
use crate::batch::schema::{Content, Element, Field, Value, ValueOf, with_element_type};
use crate::image::Image;
use crate::lane::cursor::RecordPosition;

/// Tokens of a document on their way into a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment<'a> {
    /// The tokens.
    pub tokens: TokenSlice<'a>,
    /// The token of the same document that follows, if it continues in a later row.
    pub next: Option<Token<'a>>,
    /// Number of their segment in its row, from 1.
    pub number: i32,
    /// The index of their source's first piece among those of all sources.
    pub first_piece: u32,
    /// How many other slices of tokens were written into the row before: two of one segment around a cut.
    pub entry: usize,
    /// The index in the row of the first token.
    pub start: usize,
    /// The index of that token in its segment: not 0 after a cut inside a segment.
    pub position: usize,
    /// Whether the document begins here rather than in an earlier row.
    pub opens: bool,
    /// The number that the start of each segment is a multiple of.
    pub multiple: usize,
    /// The images of the row before those of these tokens.
    pub images_before: usize,
    /// How many numbers an entry of the provenance has.
    pub provenance_width: usize,
    /// How many elements of the mask an image has.
    pub mask_width: usize,
}

impl Segment<'_> {
    /// The elements of a row that the tokens take.
    fn elements<'a, E>(&self, row: &'a mut [E]) -> &'a mut [E] {
        &mut row[self.start..self.start + self.tokens.len()]
    }

    /// The length of the segment up to here, with the tokens before a cut, if there is one.
    fn length(&self) -> usize {
        self.position + self.tokens.len()
    }
}

/// Writes a segment into the elements of a field's row. The last argument is the value of padding.
type Routine<E> = fn(&mut [E], &Segment, E);

/// The routine for a content.
fn routine<E: Element>(content: Content) -> Routine<E> {
    match content {
        Content::Token => write_ids,
        Content::Segment => write_number,
        Content::Mask => write_ones,
        Content::Position => write_positions,
        Content::Target => write_targets,
        Content::TargetSegment => write_target_numbers,
        Content::Label => write_labels,
        Content::Trained => write_trained,
        Content::TargetMask => write_target_mask,
        Content::SegmentLength => write_length,
        Content::SegmentRoom => write_room,
        Content::NextToken => write_next_token,
        Content::Pair => write_pair,
        Content::Provenance => write_provenance,
        Content::RotaryPosition => write_rotary_positions,
        Content::ImageMask => write_image_masks,
        Content::ImageGrid => write_image_grids,
        Content::ImageSegment => write_image_segments,
        Content::ImageIndex => write_image_indices,
        // Pixels of images are written after all else; values of fields by a routine that knows no types.
        Content::Source | Content::Weight | Content::Pixels | Content::Value(_) => |_, _, _| {},
    }
}

/// Writes a segment into a row.
pub(super) fn write(row: &mut RowMut, segment: &Segment) {
    for field in row.fields() {
        let Field { dtype, content, padding, .. } = *field;
        if let Content::Value(value) = content {
            let width = value_width(&field);
            write_values(field.bytes(), width, value, segment);
            continue;
        }
        // A call for each field: with all routines of all types inlined here, their constants fill the registers, and
        // packing documents of 300 tokens executes a tenth more instructions.
        with_element_type!(dtype, E => {
            routine::<E>(content)(field.elements(), segment, E::from_i32(padding));
        });
    }
}

/// Makes `target`, the first token of the next document, the target of the token at `index`, the last of segment
/// `number`. Layouts without targets stay as they are.
pub(super) fn write_boundary_target(row: &mut RowMut, index: usize, number: i32, target: Token<'_>) {
    for field in row.fields() {
        let value = match field.content {
            Content::Target => target.id as i32,
            Content::TargetSegment if target.trained => number,
            Content::Value(Value { field: number, of: ValueOf::Target, .. }) => {
                let width = value_width(&field);
                write_value(value_at(field.bytes(), width, index), target.values.of_tokens(number, 1));
                continue;
            }
            _ => continue,
        };
        with_element_type!(field.dtype, E => field.elements::<E>()[index] = E::from_i32(value));
    }
}

/// Writes the number of a row's source, and the weight of that in its step, where the row has room for them.
pub(super) fn write_source(row: &mut RowMut, number: i32, weight: f32) {
    for field in row.fields() {
        match field.content {
            Content::Source => field.elements::<i32>()[0] = number,
            Content::Weight => field.elements::<f32>()[0] = weight,
            _ => {}
        }
    }
}

/// Fills a range of a row with padding.
pub(super) fn pad(row: &mut RowMut, range: &Range<usize>) {
    for field in row.fields().filter(|field| field.content.is_per_token()) {
        let (padding, content) = (field.padding, field.content);
        if let Content::Value(_) = content {
            let width = value_width(&field);
            field.bytes()[range.start * width..range.end * width].fill(0);
            continue;
        }
        with_element_type!(field.dtype, E => {
            let elements = field.elements::<E>();
            if content == Content::RotaryPosition {
                axes(elements).for_each(|axis| fill(&mut axis[range.clone()], padding));
            } else {
                fill(&mut elements[range.clone()], padding);
            }
        });
    }
}

/// Takes the tokens of a range of a row out of those that are trained on.
pub(super) fn untrain(row: &mut RowMut, range: &Range<usize>) {
    let is_mask = |content| {
        matches!(content, Content::TargetSegment | Content::TargetMask | Content::Label | Content::Trained)
            || matches!(content, Content::Value(Value { is_weight: true, .. }) if content.is_per_token())
    };
    for field in row.fields().filter(|field| is_mask(field.content)) {
        let padding = field.padding;
        with_element_type!(field.dtype, E => fill(&mut field.elements::<E>()[range.clone()], padding));
    }
}

/// Makes a row one of nothing but padding.
pub(super) fn clear(row: &mut RowMut) {
    for field in row.fields() {
        let padding = field.padding;
        with_element_type!(field.dtype, E => fill(field.elements::<E>(), padding));
    }
}

fn write_ids<E: Element>(row: &mut [E], segment: &Segment, _: E) {
    copy(segment.elements(row), segment.tokens.ids);
}

fn write_number<E: Element>(row: &mut [E], segment: &Segment, _: E) {
    segment.elements(row).fill(E::from_i32(segment.number));
}

fn write_ones<E: Element>(row: &mut [E], segment: &Segment, _: E) {
    segment.elements(row).fill(E::from_i32(1));
}

fn write_positions<E: Element>(row: &mut [E], segment: &Segment, _: E) {
    for (position, element) in (segment.position as i32..).zip(segment.elements(row)) {
        *element = E::from_i32(position);
    }
}

fn write_targets<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    let Some((last, targets)) = segment.elements(row).split_last_mut() else { return };
    copy(targets, &segment.tokens.ids[1..]);
    *last = segment.next.map_or(padding, |next| E::from_i32(next.id as i32));
}

fn write_target_numbers<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    mark_targets(row, segment, E::from_i32(segment.number), padding);
}

fn write_target_mask<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    mark_targets(row, segment, E::from_i32(1), padding);
}

/// Writes `number` for each token whose target is trained on.
fn mark_targets<E: Element>(row: &mut [E], segment: &Segment, number: E, padding: E) {
    let Some((last, targets)) = segment.elements(row).split_last_mut() else { return };
    targets.fill(number);
    if let Some(trained) = segment.tokens.trained {
        blank_untrained(targets, &trained[1..], padding);
    }
    *last = if segment.next.is_some_and(|next| next.trained) { number } else { padding };
}

fn write_labels<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    let labels = segment.elements(row);
    copy(labels, segment.tokens.ids);
    if let Some(trained) = segment.tokens.trained {
        blank_untrained(labels, trained, padding);
    }
    // A label is predicted from the element before it in the row, which must be the token before it in its document:
    // neither that of another document, nor one before a cut, nor padding.
    if segment.opens || segment.start > 0 {
        labels[0] = padding;
    }
}

fn write_trained<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    let elements = segment.elements(row);
    elements.fill(E::from_i32(1));
    if let Some(trained) = segment.tokens.trained {
        blank_untrained(elements, trained, padding);
    }
}

/// Writes the segment's length, and with the row's first segment the zeros behind the last.
fn write_length<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    write_of_segment(row, segment, segment.length(), padding);
}

/// Writes how much the segment takes with its filling, and with the row's first segment the zeros behind the last.
fn write_room<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    write_of_segment(row, segment, segment.length().next_multiple_of(segment.multiple), padding);
}

fn write_of_segment<E: Element>(row: &mut [E], segment: &Segment, value: usize, padding: E) {
    if segment.number == 1 {
        row.fill(padding);
    }
    row[segment.number as usize - 1] = E::from_i32(value as i32);
}

/// Writes the number of the pair that the segment is one of, and with the row's first segment the zeros behind the last.
fn write_pair<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    if segment.number == 1 {
        row.fill(padding);
    }
    if segment.tokens.document.split > 0 {
        row[segment.number as usize - 1] = E::from_i32((segment.number + 1) / 2);
    }
}

/// Writes what follows the segment: only behind the row's last one does its document continue.
fn write_next_token<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    row[0] = segment.next.map_or(padding, |next| E::from_i32(next.id as i32));
}

/// Writes the segment's entry if the row has room for it. Entries without room show in the lengths, which then do not
/// add up to the row's tokens.
fn write_provenance<E: Element>(row: &mut [E], segment: &Segment, _: E) {
    if segment.entry == 0 {
        row.fill(E::from_i32(0));
    }
    let Some(entry) = row.chunks_exact_mut(segment.provenance_width).nth(segment.entry) else { return };
    let TokenSlice { ids, offset, document, .. } = segment.tokens;
    // Only a shard of two billion lines goes beyond int32: such numbers saturate.
    let piece = u64::from(document.shard) + u64::from(segment.first_piece);
    let RecordPosition { epoch, record, sample, .. } = document.position;
    let numbers = [piece, record, offset as u64, ids.len() as u64, sample, epoch];
    for (element, number) in entry.iter_mut().zip(numbers) {
        *element = E::from_i32(i32::try_from(number).unwrap_or(i32::MAX));
    }
}

/// Writes the positions of a segment on three axes: text counts on all of them; the tokens of an image count its frames,
/// rows and columns from where it begins; and the text after it continues at the largest position + 1.
fn write_rotary_positions<E: Element>(row: &mut [E], segment: &Segment, _: E) {
    let (start, length) = (segment.start, segment.tokens.len());
    let (mut next, mut index) = (segment.position as i32, 0);
    let text = |row: &mut [E], index: &mut usize, end: usize, next: &mut i32| {
        for axis in axes(row) {
            for (position, element) in (*next..).zip(&mut axis[start + *index..start + end]) {
                *element = E::from_i32(position);
            }
        }
        *next += (end - *index) as i32;
        *index = end;
    };
    for image in segment.tokens.images {
        text(row, &mut index, image.token as usize - segment.tokens.offset, &mut next);
        let [frames, rows, columns] = image.plan.merged_grid();
        let end = index + image.plan.tokens as usize;
        for (number, axis) in axes(row).enumerate() {
            for (token, element) in (0_u32..).zip(&mut axis[start + index..start + end]) {
                let along = match number {
                    0 => token / (rows * columns),
                    1 => token / columns % rows,
                    _ => token % columns,
                };
                *element = E::from_i32(next + along as i32);
            }
        }
        next += frames.max(rows).max(columns) as i32;
        index = end;
    }
    text(row, &mut index, length, &mut next);
}

/// The three axes of rotary positions.
fn axes<E>(row: &mut [E]) -> impl Iterator<Item = &mut [E]> {
    let length = row.len() / 3;
    row.chunks_exact_mut(length.max(1))
}

fn write_image_masks<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    of_images(row, segment, padding, segment.mask_width, |elements, image| {
        elements[..image.plan.tiles.max(1) as usize].fill(E::from_i32(1));
    });
}

fn write_image_grids<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    of_images(row, segment, padding, 3, |elements, image| {
        for (element, size) in elements.iter_mut().zip(image.plan.grid) {
            *element = E::from_i32(size as i32);
        }
    });
}

fn write_image_segments<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    of_images(row, segment, padding, 1, |elements, _| elements[0] = E::from_i32(segment.number));
}

fn write_image_indices<E: Element>(row: &mut [E], segment: &Segment, padding: E) {
    of_images(row, segment, padding, 1, |elements, image| {
        let index = image.token as usize - segment.tokens.offset;
        elements[0] = E::from_i32((segment.start + index) as i32);
    });
}

/// Writes the elements of each image, of which there are `width`, and with the row's first segment those of no image.
fn of_images<E: Element>(
    row: &mut [E],
    segment: &Segment,
    padding: E,
    width: usize,
    write: impl Fn(&mut [E], &Image),
) {
    if segment.entry == 0 {
        row.fill(padding);
    }
    let free = row[segment.images_before * width..].chunks_exact_mut(width);
    for (elements, image) in free.zip(segment.tokens.images) {
        write(elements, image);
    }
}

/// Bytes of a value of a field whose rows have values for a list of tokens or segments.
fn value_width(field: &Field) -> usize {
    let values = match field.content {
        Content::Value(Value { of: ValueOf::NextToken, .. }) => 1,
        _ => field.row_shape[0],
    };
    field.row_len() * field.dtype.size() / values.max(1)
}

/// Writes the values of a segment's tokens, or of its sample.
fn write_values(row: &mut [u8], width: usize, value: Value, segment: &Segment) {
    let Segment { tokens, next, start, .. } = segment;
    let Value { field, of, .. } = value;
    let end = start + tokens.len();
    match of {
        ValueOf::Token | ValueOf::Label => {
            write_value(&mut row[start * width..end * width], tokens.values.of_tokens(field, tokens.len()));
            // As labels are.
            if of == ValueOf::Label && (segment.opens || *start > 0) && !tokens.is_empty() {
                value_at(row, width, *start).fill(0);
            }
        }
        ValueOf::Target => {
            let Some(targets) = tokens.len().checked_sub(1) else { return };
            let (last, first) = (start + targets, tokens.values.after(1));
            write_value(&mut row[start * width..last * width], first.of_tokens(field, targets));
            let next = next.and_then(|next| next.values.of_tokens(field, 1));
            write_value(value_at(row, width, last), next);
        }
        ValueOf::NextToken => write_value(row, next.and_then(|next| next.values.of_tokens(field, 1))),
        ValueOf::Sample => {
            if segment.number == 1 {
                row.fill(0);
            }
            let place = (segment.number as usize - 1) * width;
            if let Some(place) = row.get_mut(place..place + width) {
                write_value(place, tokens.values.of_sample(field));
            }
        }
    }
}

fn value_at(row: &mut [u8], width: usize, index: usize) -> &mut [u8] {
    &mut row[index * width..(index + 1) * width]
}

/// Writes values; zeros where there are none.
fn write_value(place: &mut [u8], values: Option<&[u8]>) {
    match values {
        Some(values) => place.copy_from_slice(values),
        None => place.fill(0),
    }
}

/// Zeros, which most padding is, are written by the C library, twice as fast as the loop for any value.
fn fill<E: Element>(elements: &mut [E], value: i32) {
    if value == 0 {
        elements.fill(E::from_i32(0));
    } else {
        elements.fill(E::from_i32(value));
    }
}

fn copy<E: Element>(elements: &mut [E], ids: &[u32]) {
    for (element, &id) in elements.iter_mut().zip(ids) {
        *element = E::from_i32(id as i32);
    }
}

fn blank_untrained<E: Element>(elements: &mut [E], trained: &[bool], padding: E) {
    for (element, &trained) in elements.iter_mut().zip(trained) {
        if !trained {
            *element = padding;
        }
    }
}

#[cfg(test)]
mod tests;
