use std::sync::{Arc, LazyLock};

use super::*;
use crate::batch::buffers::Pool;
use crate::batch::layouts::provenance_field;
use crate::batch::ring::ring;
use crate::batch::schema::{BatchSchema, DType, Field};
use crate::lane::block::Document;
use crate::lane::cursor::RecordPosition;
use crate::lane::values::Values;
use crate::spec::Layout;

const LAYOUTS: [Layout; 3] = [Layout::MaxText, Layout::Grain, Layout::Hf];

/// The int32 fields of a row that `write` has written, which was full of other numbers.
fn written(fields: Vec<Field>, write: impl FnOnce(&mut RowMut)) -> Vec<Vec<i32>> {
    let pool = Pool::new(Arc::new(BatchSchema::new(1, fields)), 1);
    let (_consumer, mut writers) = ring::<()>(pool.schema(), 1, vec![pool.get().unwrap()], 0, 0);
    let mut row = writers[0].row(0);
    row.fields().for_each(|field| field.elements::<i32>().fill(77));
    write(&mut row);
    row.fields().map(|field| field.elements::<i32>().to_vec()).collect()
}

fn document(record: u64) -> Document {
    let place = RecordPosition { record, ..RecordPosition::default() };
    Document { position: place, shard: 3, ..Document::default() }
}

/// Tokens of record 5.
fn tokens(ids: &[u32]) -> TokenSlice<'_> {
    static DOCUMENT: LazyLock<Document> = LazyLock::new(|| document(5));
    TokenSlice { ids, trained: None, values: Values::default(), images: &[], offset: 0, document: &DOCUMENT }
}

fn segment(number: i32, start: usize, tokens: TokenSlice<'_>) -> Segment<'_> {
    Segment {
        tokens,
        next: None,
        number,
        first_piece: 0,
        entry: 0,
        start,
        position: 0,
        opens: true,
        multiple: 1,
        images_before: 0,
        provenance_width: 4,
        mask_width: 1,
    }
}

fn token(id: u32) -> Token<'static> {
    Token { id, trained: true, values: Values::default() }
}

/// The end of a document that began earlier, a whole one, and the start of one that continues.
fn three_documents(layout: Layout, boundary: bool) -> Vec<Vec<i32>> {
    written(layout.fields(6, 3, false), |row| {
        write(row, &Segment { opens: false, ..segment(1, 0, tokens(&[11, 12])) });
        if boundary {
            write_boundary_target(row, 1, 1, token(21));
        }
        write(row, &segment(2, 2, tokens(&[21])));
        write(row, &Segment { next: Some(token(33)), ..segment(3, 3, tokens(&[31, 32])) });
        pad(row, &(5..6));
    })
}

#[test]
fn maxtext() {
    let [inputs, segments, positions] = [[11, 12, 21, 31, 32, 0], [1, 1, 2, 3, 3, 0], [0, 1, 0, 0, 1, 0]];
    let targets = [[12, 0, 0, 32, 33, 0], [1, 0, 0, 3, 3, 0]];
    assert_eq!(
        three_documents(Layout::MaxText, false),
        [inputs, segments, positions, targets[0], targets[1], positions]
    );
    let targets = [[12, 21, 0, 32, 33, 0], [1, 1, 0, 3, 3, 0]];
    assert_eq!(
        three_documents(Layout::MaxText, true),
        [inputs, segments, positions, targets[0], targets[1], positions]
    );
}

#[test]
fn grain() {
    let expected = [[11, 12, 21, 31, 32, 0], [1, 1, 2, 3, 3, 0], [0, 1, 0, 0, 1, 0]];
    assert_eq!(three_documents(Layout::Grain, true), expected);
}

#[test]
fn hf() {
    let expected =
        [[11, 12, 21, 31, 32, 0], [1, 1, 1, 1, 1, 0], [0, 1, 0, 0, 1, 0], [11, 12, -100, -100, 32, -100]];
    assert_eq!(three_documents(Layout::Hf, true), expected);
}

#[test]
fn varlen() {
    let expected: [&[i32]; 3] = [&[11, 12, 21, 31, 32, 0], &[2, 1, 2], &[33]];
    assert_eq!(three_documents(Layout::Varlen, true), expected);
}

#[test]
fn varlen_without_a_continued_document() {
    let found = written(Layout::Varlen.fields(4, 3, false), |row| {
        write(row, &segment(1, 0, tokens(&[1, 2, 3])));
        pad(row, &(3..4));
    });
    let expected: [&[i32]; 3] = [&[1, 2, 3, 0], &[3, 0, 0], &[-1]];
    assert_eq!(found, expected);
    assert_eq!(written(Layout::Varlen.fields(2, 1, false), clear), [vec![0, 0], vec![0], vec![-1]]);
}

#[test]
fn varlen_masks_targets() {
    let pool = Pool::new(Arc::new(BatchSchema::new(1, Layout::Varlen.fields(6, 2, true))), 1);
    let (_consumer, mut writers) = ring::<()>(pool.schema(), 1, vec![pool.get().unwrap()], 0, 0);
    let mut row = writers[0].row(0);
    row.fields().nth(3).unwrap().elements::<u8>().fill(7);
    let masked = TokenSlice { trained: Some(&[false, true, false]), ..tokens(&[11, 12, 13]) };
    write(&mut row, &segment(1, 0, masked));
    let next = Some(Token { id: 33, trained: false, values: Values::default() });
    write(&mut row, &Segment { next, ..segment(2, 3, tokens(&[21, 22])) });
    pad(&mut row, &(5..6));
    assert_eq!(row.fields().nth(3).unwrap().elements::<u8>(), [1, 0, 0, 1, 0, 0]);
    untrain(&mut row, &(3..5));
    assert_eq!(row.fields().nth(3).unwrap().elements::<u8>(), [1, 0, 0, 0, 0, 0]);
    assert_eq!(row.fields().nth(2).unwrap().elements::<i32>(), [33]);
}

#[test]
fn nothing_is_trained_over_a_cut() {
    let halves = |layout: Layout| {
        written(layout.fields(4, 1, false), |row| {
            write(row, &segment(1, 0, tokens(&[1, 2])));
            let after = Segment { opens: false, position: 2, entry: 1, ..segment(1, 2, tokens(&[8, 9])) };
            write(row, &after);
        })
    };
    assert_eq!(halves(Layout::MaxText)[1..5], [[1, 1, 1, 1], [0, 1, 2, 3], [2, 0, 9, 0], [1, 0, 1, 0]]);
    assert_eq!(halves(Layout::Hf)[2..], [[0, 1, 2, 3], [-100, 2, -100, 9]]);
}

fn with_provenance(fields: Vec<Field>, entries: usize, makes_several: bool) -> Vec<Field> {
    fields.into_iter().chain(provenance_field(entries, if makes_several { 5 } else { 4 })).collect()
}

#[test]
fn provenance_names_the_sample_where_records_make_several() {
    let found = written(with_provenance(Layout::Grain.fields(2, 1, false), 1, true), |row| {
        let mut document = document(6);
        document.position.sample = 2;
        let tokens = TokenSlice { document: &document, ..tokens(&[1, 2]) };
        write(row, &Segment { provenance_width: 5, ..segment(1, 0, tokens) });
    });
    assert_eq!(found[3], [3, 6, 0, 2, 2]);
}

#[test]
fn row_of_the_middle_of_a_document_says_where_it_is() {
    let [ids, ones, positions] = [[1, 2, 3, 0, 0], [1, 1, 1, 0, 0], [0, 1, 2, 0, 0]].map(Vec::from);
    let [targets, provenance] = [vec![2, 3, 4, 0, 0], vec![3, 5, 7, 3, 0, 0, 0, 0]];
    // The token before the row's first is in an earlier row, where it is known.
    let labels = vec![1, 2, 3, -100, -100];
    let first = [ids, ones.clone(), positions.clone()];
    let rests = [vec![targets, ones, positions], vec![], vec![labels]];
    for (layout, rest) in LAYOUTS.into_iter().zip(rests) {
        let expected = [&first[..], &rest, std::slice::from_ref(&provenance)].concat();
        let found = written(with_provenance(layout.fields(5, 1, false), 2, false), |row| {
            let tokens = TokenSlice { offset: 7, ..tokens(&[1, 2, 3]) };
            write(row, &Segment { next: Some(token(4)), opens: false, ..segment(1, 0, tokens) });
            pad(row, &(3..5));
        });
        assert_eq!(found, expected, "{layout:?}");
    }
}

#[test]
fn masks_show_in_every_layout() {
    let expected: [&[[i32; 5]]; 3] = [
        // A token that is not trained on is no target.
        &[[11, 12, 13, 21, 22], [1, 1, 1, 2, 2], [0, 1, 2, 0, 1], [12, 13, 14, 22, 0], [1, 0, 0, 2, 0]],
        &[[11, 12, 13, 21, 22], [1, 1, 1, 2, 2], [0, 1, 2, 0, 1], [0, 1, 0, 1, 1]],
        &[[11, 12, 13, 21, 22], [1, 1, 1, 1, 1], [0, 1, 2, 0, 1], [-100, 12, -100, -100, 22]],
    ];
    for (layout, expected) in LAYOUTS.into_iter().zip(expected) {
        let found = written(layout.fields(5, 2, true), |row| {
            let masked = TokenSlice { trained: Some(&[false, true, false]), ..tokens(&[11, 12, 13]) };
            let next = Some(Token { id: 14, trained: false, values: Values::default() });
            write(row, &Segment { next, ..segment(1, 0, masked) });
            write(row, &segment(2, 3, tokens(&[21, 22])));
        });
        assert_eq!(found[..expected.len()], *expected, "{layout:?}");
    }
}

#[test]
fn a_boundary_target_is_masked_too() {
    for (trained, expected) in [(true, [4, 4]), (false, [4, 0])] {
        let found = written(Layout::MaxText.fields(2, 1, true), |row| {
            write(row, &segment(4, 0, tokens(&[1, 2])));
            write_boundary_target(row, 1, 4, Token { id: 3, trained, values: Values::default() });
        });
        assert_eq!(found[3..5], [[2, 3], expected]);
    }
}

#[test]
fn a_cleared_row_is_padding() {
    for layout in LAYOUTS {
        let fields = with_provenance(layout.fields(3, 1, true), 1, true);
        let expected: Vec<_> = fields.iter().map(|field| vec![field.padding; field.row_len()]).collect();
        assert_eq!(written(fields, clear), expected, "{layout:?}");
    }
}

#[test]
fn provenance_without_room_is_left_out_and_large_numbers_saturate() {
    let found = written(with_provenance(Layout::Grain.fields(4, 1, false), 2, false), |row| {
        for entry in 0..3 {
            let document = document(1 << (20 * entry));
            let tokens = TokenSlice { offset: 5 + entry, document: &document, ..tokens(&[1]) };
            write(row, &Segment { entry, ..segment(1, entry, tokens) });
        }
    });
    assert_eq!(found[3], [3, 1, 5, 1, 3, 1 << 20, 6, 1]);
    let found = written(with_provenance(Layout::Grain.fields(4, 1, false), 2, false), |row| {
        write(row, &segment(1, 0, TokenSlice { document: &document(1 << 40), ..tokens(&[1]) }));
    });
    assert_eq!(found[3], [3, i32::MAX, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn fields_of_other_types_hold_the_same_numbers() {
    let field = |dtype, content, padding| Field::new("", dtype, vec![4], content, padding);
    let fields = vec![
        field(DType::Int64, Content::Token, -1),
        field(DType::Float32, Content::Trained, 0),
        field(DType::Uint8, Content::Mask, 0),
    ];
    let pool = Pool::new(Arc::new(BatchSchema::new(1, fields)), 1);
    let (_consumer, mut writers) = ring::<()>(pool.schema(), 1, vec![pool.get().unwrap()], 0, 0);
    let mut row = writers[0].row(0);
    let masked = TokenSlice { trained: Some(&[true, false]), ..tokens(&[7, 1 << 30]) };
    write(&mut row, &segment(1, 2, masked));
    pad(&mut row, &(0..2));
    let mut fields = row.fields();
    assert_eq!(fields.next().unwrap().elements::<i64>(), [-1, -1, 7, 1 << 30]);
    assert_eq!(fields.next().unwrap().elements::<f32>(), [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(fields.next().unwrap().elements::<u8>(), [0, 0, 1, 1]);
}
