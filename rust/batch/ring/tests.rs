use super::*;
use crate::batch::buffers::{Pool, PooledBatch};

const SHAPE: Shape = Shape { arrays: 2, rows: 6, length: 5, entries: 1 };

fn small(
    slots: usize,
    first_step: u64,
    delivered: usize,
) -> (Consumer<u64>, Vec<LaneWriter<u64>>, Arc<Pool>) {
    let pool = Pool::new(SHAPE, 4);
    let buffers = (0..slots).map(|_| pool.get().expect("memory")).collect();
    let (consumer, writers) = ring(SHAPE, 3, buffers, first_step, delivered);
    (consumer, writers, pool)
}

/// Writes recognisable values made of step, lane, row and array.
fn write(writer: &mut LaneWriter<u64>) {
    let (step, lane) = (writer.step(), writer.lane);
    for row in 0..writer.rows() {
        for (array, items) in writer.row::<2>(row).into_iter().enumerate() {
            items.fill((step * 1000) as i32 + (lane * 100 + row * 10 + array) as i32);
        }
    }
    writer.publish(step * 10 + lane as u64);
}

fn check(lease: &PooledBatch, step: u64) {
    for row in 0..SHAPE.rows {
        for array in 0..SHAPE.arrays {
            let expected = (step * 1000) as i32 + ((row / 2) * 100 + (row % 2) * 10 + array) as i32;
            // SAFETY: in bounds, and nobody else holds the lease.
            let found = unsafe { lease.as_ptr().add(SHAPE.offset(array, row)).cast::<[i32; 5]>().read() };
            assert_eq!(found, [expected; 5]);
        }
    }
}

#[test]
fn lanes_stop_at_a_full_ring_and_go_on_when_a_slot_is_taken() {
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
fn lanes_that_gave_their_rows_before_skip_the_first_step() {
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
fn threads_of_any_speed_give_every_step_in_order() {
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
