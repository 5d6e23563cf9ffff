//! Sizes, tokens and texts of models. Pixels are compared with Pillow and transformers by the Python tests.

use gristmill_images::{
    Filter, Image, ImageModel, MODEL_NAMES, ModelError, Pillow, Resize, Scratch, Settings, Shape, Size,
};
use proptest::prelude::*;

fn model(name: &str) -> ImageModel {
    ImageModel::named(name, Pillow::V13).expect("a model")
}

fn size(width: u32, height: u32) -> Size {
    Size { width, height }
}

#[test]
fn patches_keep_the_aspect_ratio() {
    let plan = model("qwen2-vl").plan(size(640, 427)).unwrap();
    assert_eq!(
        (plan.size, plan.grid_thw, plan.tokens, plan.patches),
        (size(644, 420), [1, 30, 46], 345, 1380)
    );
    let plan = model("qwen3-vl").plan(size(640, 427)).unwrap();
    assert_eq!((plan.size, plan.grid_thw, plan.tokens), (size(640, 416), [1, 26, 40], 260));
    let plan = model("qwen2.5-vl").plan(size(1, 1)).unwrap();
    assert_eq!((plan.size, plan.tokens), (size(56, 56), 4));
    // 70 / 28 = 2.5 becomes 2.
    assert_eq!(model("qwen2-vl").plan(size(70, 280)).unwrap().size, size(56, 280));
}

#[test]
fn aspect_ratio_above_200_is_refused() {
    assert!(model("qwen2-vl").plan(size(1, 200)).is_ok());
    let error = model("qwen2-vl").plan(size(1, 201)).unwrap_err();
    assert_eq!(error, ModelError::AspectRatio { size: size(1, 201), most: 200 });
    assert_eq!(error.to_string(), "expected an aspect ratio of at most 200, found 1 x 201");
}

#[test]
fn fixed_sizes_take_every_image() {
    for name in ["gemma3", "siglip", "clip"] {
        for source in [size(1, 1), size(1, 20_000), size(20_000, 1)] {
            let model = model(name);
            let plan = model.plan(source).unwrap();
            let image = Image { size: source, pixels: vec![7; 3 * (source.width * source.height) as usize] };
            let mut out = vec![0; model.pixels_len(&plan)];
            model.write_u8(&image, &plan, &mut out, &mut Scratch::default()).unwrap();
            assert!(out.iter().all(|&value| value == 7), "{name} {source:?}");
        }
    }
}

#[test]
fn tiles_follow_the_aspect_ratio() {
    let tiles = |width, height| model("llama4").plan(size(width, height)).unwrap().tiles;
    assert_eq!(tiles(336, 336), [1, 1]);
    assert_eq!(tiles(1, 1), [1, 1]);
    assert_eq!(tiles(5000, 5000), [4, 4]);
    assert_eq!(tiles(20_000, 1), [1, 16]);
    assert_eq!(tiles(600, 300), [1, 2]);
}

#[test]
fn texts_repeat_the_token_of_the_image() {
    let text = |name: &str, source| {
        let model = model(name);
        let plan = model.plan(source).unwrap();
        let (markup, words) = (&model.settings().markup, model.words());
        assert_eq!(model.expanded(&plan).matches(&markup.token).count() as u32, plan.tokens.max(1), "{name}");
        let parts = model.expansion(&plan).into_iter().map(|(word, count)| (&*words[word], count));
        let whole = [(&*markup.before, 1)].into_iter().chain(parts).chain([(&*markup.after, 1)]);
        let shown =
            whole.filter(|(part, _)| !part.is_empty()).map(|(part, count)| format!("{part:?}*{count}"));
        shown.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(text("qwen3-vl", size(640, 427)), r#""<|image_pad|>"*260"#);
    assert_eq!(
        text("gemma3", size(1, 1)),
        r#""\n\n<start_of_image>"*1 "<image_soft_token>"*256 "<end_of_image>\n\n"*1"#
    );
    assert_eq!(
        text("llama4", size(600, 300)),
        r#""<|image_start|>"*1 "<|patch|>"*144 "<|tile_x_separator|>"*1 "<|patch|>"*144 "<|tile_y_separator|>"*1 "<|image|>"*1 "<|patch|>"*144 "<|image_end|>"*1"#
    );
    assert_eq!(text("siglip", size(1, 1)), "");
}

#[test]
fn sides_that_no_memory_holds_are_refused() {
    let long = size(1 << 24, 1);
    let error = model("gemma3").plan(size(1 + (1 << 24), 1)).unwrap_err();
    assert_eq!(error.to_string(), "expected at most 16777216 columns and rows, found 16777217 x 1");
    assert!(model("clip").plan(long).is_ok());
    let shape = Shape::Fixed { size: size(1, 1), shortest: Some(1000), tokens: 0, pads: false };
    let thousand =
        ImageModel::new(Settings { shape, ..Settings::named("clip").unwrap() }, Pillow::V13).unwrap();
    assert_eq!(thousand.plan(long), Err(ModelError::AspectRatio { size: long, most: 4_294_967 }));
}

#[test]
fn image_of_another_size_than_planned_is_refused() {
    let model = model("siglip");
    let plan = model.plan(size(2, 1)).unwrap();
    let image = Image { size: size(1, 2), pixels: vec![0; 6] };
    let mut out = vec![0; model.pixels_len(&plan)];
    let error = model.write_u8(&image, &plan, &mut out, &mut Scratch::default()).unwrap_err();
    assert_eq!(error.to_string(), "expected an image of 2 x 1, as its plan says, found 1 x 2");
}

#[test]
fn settings_out_of_range_are_refused() {
    let siglip = Settings::named("siglip").unwrap();
    let shape = Shape::Fixed { size: size(0, 1), shortest: None, tokens: 0, pads: false };
    let error = ImageModel::new(Settings { shape, ..siglip.clone() }, Pillow::V13).unwrap_err();
    assert_eq!(error.to_string(), "size=0: expected 1 to 16384");
    let error = ImageModel::new(Settings { std: [1.0, 0.0, 1.0], ..siglip }, Pillow::V13).unwrap_err();
    assert_eq!(error.to_string(), "image_std=0: expected finite numbers other than 0");
    let error = ImageModel::named("qwen", Pillow::V13).unwrap_err().to_string();
    assert!(error.ends_with(&format!("{}, found \"qwen\"", MODEL_NAMES[MODEL_NAMES.len() - 1])), "{error}");
}

proptest! {
    #[test]
    fn any_size_is_planned_or_refused(
        name in prop::sample::select(&MODEL_NAMES[..]),
        width in 1_u32..100_000,
        height in prop_oneof![1_u32..500, 1_u32..100_000],
    ) {
        let model = model(name);
        match model.plan(size(width, height)) {
            Ok(plan) => {
                prop_assert!(model.pixels_len(&plan) < 1 << 28);
                prop_assert_eq!(plan.patches, plan.grid_thw.iter().product());
            }
            // The size is that after the first of two resizes, where the model has two.
            Err(ModelError::AspectRatio { size, most: 200 }) => {
                prop_assert!(name.starts_with("qwen") || name == "glm4v", "{name}");
                prop_assert!(size.width.max(size.height) > 200 * size.width.min(size.height));
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn window_is_a_part_of_the_whole(
        filter in prop::sample::select(&Filter::ALL[..]),
        old in (1_u32..60, 1_u32..60),
        new in (1_u32..60, 1_u32..60),
        window in any::<[prop::sample::Index; 4]>(),
        seed in any::<u8>(),
    ) {
        let pixels = (0..3 * old.0 * old.1).map(|i| (i * (37 + i % 1000 * u32::from(seed))) as u8).collect();
        let image = Image { size: size(old.0, old.1), pixels };
        let whole = Resize::whole(size(new.0, new.1), filter.1, Pillow::V13);
        let mut all = vec![0; 3 * (new.0 * new.1) as usize];
        whole.write(&image, &mut all, &mut Scratch::default());
        let range = |a: prop::sample::Index, b: prop::sample::Index, most: u32| {
            let start = a.index(most as usize) as u32;
            (start, 1 + b.index((most - start) as usize) as u32)
        };
        let (left, columns) = range(window[0], window[1], new.0);
        let (top, rows) = range(window[2], window[3], new.1);
        let mut part = vec![0; 3 * (columns * rows) as usize];
        let window = gristmill_images::Window { left, top, size: size(columns, rows) };
        Resize { window, ..whole }.write(&image, &mut part, &mut Scratch::default());
        let expected: Vec<u8> = (top..top + rows)
            .flat_map(|y| all[3 * (y * new.0 + left) as usize..][..3 * columns as usize].to_vec())
            .collect();
        prop_assert_eq!(part, expected);
    }
}
