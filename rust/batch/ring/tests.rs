use super::*;
use crate::batch::buffers::{Pool, PooledBatch};
use crate::batch::schema::{Content, DType, with_element_type};

const ROWS: usize = 6;
const LENGTH: usize = 5;

/// Two fields of different types.
fn schema() -> Arc<BatchSchema> {
    let fields = vec![
        Field::new("tokens", DType::Int32, vec![LENGTH], Content::Token, 0),
        Field::new("wide", DType::Int64, vec![LENGTH], Content::Token, 0),
    ];
    Arc::new(BatchSchema::new(ROWS, fields))
}

fn small(
    slots: usize,
    first_step: u64,
    delivered: usize,
) -> (Consumer<u64>, Vec<LaneWriter<u64>>, Arc<Pool>) {
    let pool = Pool::new(schema(), 4);
    let buffers = (0..slots).map(|_| pool.get().expect("memory")).collect();
    let (consumer, writers) = ring(pool.schema(), 3, buffers, first_step, delivered);
    (consumer, writers, pool)
}

/// The value of all elements of a row of a field.
fn value(step: u64, row: usize, field: usize) -> i32 {
    (step * 1000) as i32 + (row * 10 + field) as i32
}

fn write(writer: &mut LaneWriter<u64>) {
    let (step, lane) = (writer.step(), writer.lane);
    for row in 0..writer.rows() {
        let number = lane * writer.rows() + row;
        for (index, field) in writer.row(row).fields().enumerate() {
            let value = value(step, number, index);
            with_element_type!(field.dtype, E => field.elements().fill(E::from_i32(value)));
        }
    }
    writer.publish(step * 10 + lane as u64);
}

fn check(lease: &PooledBatch, step: u64) {
    for row in 0..ROWS {
        // SAFETY: in bounds, and nobody else holds the batch.
        let found = unsafe { lease.row_ptr::<i32>(0, row).cast::<[i32; LENGTH]>().read() };
        assert_eq!(found, [value(step, row, 0); LENGTH]);
        // SAFETY: likewise.
        let found = unsafe { lease.row_ptr::<i64>(1, row).cast::<[i64; LENGTH]>().read() };
        assert_eq!(found, [i64::from(value(step, row, 1)); LENGTH]);
    }
}

#[test]
#[should_panic(expected = "Int64")]
fn elements_of_another_type_panic() {
    let (_consumer, mut writers, _pool) = small(1, 0, 0);
    writers[0].row(0).fields().nth(1).unwrap().elements::<i32>().fill(0);
}

#[test]
fn lanes_write_again_once_a_slot_is_taken() {
    let (mut consumer, mut writers, pool) = small(2, 7, 0);
    assert_eq!(consumer.ready(), 0);
    for writer in &mut writers {
        while writer.has_room() {
            write(writer);
        }
        assert_eq!(writer.step(), 9);
    }
    assert_eq!(consumer.ready(), 2);
    let (buffer, reports) = consumer.take(pool.get().expect("memory")).unwrap();
    assert_eq!(reports, [Some(70), Some(71), Some(72)]);
    check(&PooledBatch::new(buffer, Arc::clone(&pool)), 7);
    assert!(writers[1].has_room());
    write(&mut writers[1]);
    assert!(!writers[1].has_room());
    assert_eq!(consumer.ready(), 1);
}

#[test]
fn reports_of_the_next_slot_are_known_once_it_is_full() {
    let (mut consumer, mut writers, pool) = small(2, 7, 0);
    write(&mut writers[0]);
    write(&mut writers[1]);
    assert_eq!(consumer.all_next(|report| *report >= 70), None);
    write(&mut writers[2]);
    assert_eq!(consumer.all_next(|report| *report >= 70), Some(true));
    assert_eq!(consumer.all_next(|report| *report > 70), Some(false));
    assert_eq!(consumer.take(pool.get().expect("memory")).unwrap().1, [Some(70), Some(71), Some(72)]);
    assert_eq!(consumer.all_next(|_| true), None);
}

#[test]
fn lanes_already_delivered_skip_the_first_step() {
    let (mut consumer, mut writers, pool) = small(2, 4, 2);
    assert_eq!(writers.iter().map(LaneWriter::step).collect::<Vec<_>>(), [5, 5, 4]);
    assert!(consumer.take(pool.get().expect("memory")).is_none());
    assert!(writers[2].has_room());
    write(&mut writers[2]);
    assert_eq!(consumer.take(pool.get().expect("memory")).unwrap().1, [None, None, Some(42)]);
    for writer in &mut writers {
        assert!(writer.has_room());
        write(writer);
    }
    check(&PooledBatch::new(consumer.take(pool.get().expect("memory")).unwrap().0, Arc::clone(&pool)), 5);
}

#[test]
fn steps_arrive_in_order_from_threads_of_any_speed() {
    let (mut consumer, writers, pool) = small(3, 0, 0);
    std::thread::scope(|scope| {
        for mut writer in writers {
            scope.spawn(move || {
                while writer.step() < 500 {
                    if writer.has_room() {
                        write(&mut writer);
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut kept = Vec::new();
        for step in 0..500 {
            assert!(consumer.wait(Duration::from_secs(60)), "step {step} was not filled");
            let (buffer, _) = consumer.take(pool.get().expect("memory")).unwrap();
            let lease = PooledBatch::new(buffer, Arc::clone(&pool));
            check(&lease, step);
            if step % 7 == 0 {
                kept.push((step, lease));
            }
        }
        // Nobody writes to what the consumer keeps.
        for (step, lease) in &kept {
            check(lease, *step);
        }
    });
}

#[test]
fn parts_that_are_lent_are_written_by_other_threads() {
    let (mut consumer, mut writers, pool) = small(2, 0, 0);
    let writer = &mut writers[1];
    let mut parts = writer.lend(1, &[(0, 1..3), (0, 3..5), (1, 0..0), (1, 4..5)]);
    assert_eq!(parts.iter_mut().map(|part| part.elements::<i64>().len()).collect::<Vec<_>>(), [2, 2, 0, 1]);
    std::thread::scope(|scope| {
        for (number, mut part) in parts.into_iter().enumerate() {
            scope.spawn(move || part.elements::<i64>().fill(number as i64 + 7));
        }
    });
    let wide = |writer: &mut LaneWriter<u64>, row| {
        writer.row(row).fields().nth(1).unwrap().elements::<i64>().to_vec()
    };
    assert_eq!(wide(writer, 0)[1..], [7, 7, 8, 8]);
    assert_eq!(wide(writer, 1)[4], 10);
    writer.publish(0);
    assert!(consumer.take(pool.get().unwrap()).is_none(), "two lanes have not published");
}

#[test]
fn lane_with_a_lent_part_neither_writes_nor_publishes() {
    let panics = |work: &mut dyn FnMut()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).expect_err("a panic");
    };
    let (_consumer, mut writers, _pool) = small(2, 0, 0);
    let writer = &mut writers[0];
    let parts = writer.lend(0, &[(0, 0..1), (1, 0..5)]);
    panics(&mut || _ = writer.row(0));
    panics(&mut || writer.publish(0));
    panics(&mut || drop(writer.lend(0, &[])));
    drop(parts);
    for overlapping in
        [vec![(0, 0..2), (0, 1..3)], vec![(1, 0..1), (0, 0..1)], vec![(0, 0..6)], vec![(2, 0..1)]]
    {
        panics(&mut || drop(writer.lend(0, &overlapping)));
    }
    writer.publish(0);
}
