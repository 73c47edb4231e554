"""Image operations."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from verdicts.specs import U8, F, I, entries, gradient_of

IMAGES, BOXES = F(2, 16, 16, 3), F(6, 4)
image = tf.image


def augmented(x: Any) -> Any:
    x = image.random_flip_left_right(x)
    x = image.random_brightness(x, 0.2)
    return image.random_contrast(x, 0.5, 1.5)


FUNCTIONS = entries(
    resize=(lambda x: image.resize(x, [8, 8]), IMAGES),
    resize_nearest=(lambda x: image.resize(x, [32, 32], "nearest"), IMAGES),
    resize_bytes=(lambda x: image.resize(x, [8, 8]), U8(2, 16, 16, 3)),
    resize_bicubic=(lambda x: image.resize(x, [8, 8], "bicubic"), IMAGES),
    resize_area=(lambda x: image.resize(x, [8, 8], "area"), IMAGES),
    resize_smooth=(lambda x: image.resize(x, [8, 8], antialias=True), IMAGES),
    resize_lanczos=(lambda x: image.resize(x, [8, 8], "lanczos3"), IMAGES),
    resize_gradient=(gradient_of(lambda x: image.resize(x, [8, 8])), IMAGES),
    resize_nearest_gradient=(gradient_of(lambda x: image.resize(x, [8, 8], "nearest")), IMAGES),
    resize_by_data=(lambda x, n: image.resize(x, n), IMAGES, I(2)),
    pad_to_size=(lambda x: image.resize_with_pad(x, 20, 24), IMAGES),
    crop_or_pad=(lambda x: image.resize_with_crop_or_pad(x, 12, 20), IMAGES),
    crop_and_resize=(
        lambda x, b: image.crop_and_resize(x, b, tf.zeros([6], tf.int32), [4, 4]),
        IMAGES,
        BOXES,
    ),
    central_crop=(lambda x: image.central_crop(x, 0.5), IMAGES),
    random_crop=(lambda x: image.random_crop(x, [2, 8, 8, 3]), IMAGES),
    stateless_crop=(lambda x: image.stateless_random_crop(x, [2, 8, 8, 3], seed=[1, 2]), IMAGES),
    flip=(lambda x: (image.flip_left_right(x), image.flip_up_down(x)), IMAGES),
    rotate=(lambda x: image.rot90(x), IMAGES),
    rotate_by_data=(lambda x, k: image.rot90(x, k), IMAGES, I()),
    transpose=(image.transpose, IMAGES),
    augmented=(augmented, IMAGES),
    random_hue=(lambda x: image.random_hue(x, 0.2), IMAGES),
    random_saturation=(lambda x: image.random_saturation(x, 0.5, 1.5), IMAGES),
    stateless_flip=(lambda x: image.stateless_random_flip_left_right(x, [1, 2]), IMAGES),
    brightness=(lambda x: image.adjust_brightness(x, 0.1), IMAGES),
    contrast=(lambda x: image.adjust_contrast(x, 1.5), IMAGES),
    gamma=(lambda x: image.adjust_gamma(x, 0.5), IMAGES),
    hue=(lambda x: image.adjust_hue(x, 0.1), IMAGES),
    saturation=(lambda x: image.adjust_saturation(x, 0.5), IMAGES),
    colours=(lambda x: image.hsv_to_rgb(image.rgb_to_hsv(x)), IMAGES),
    grey=(lambda x: image.grayscale_to_rgb(image.rgb_to_grayscale(x)), IMAGES),
    yuv=(lambda x: image.yuv_to_rgb(image.rgb_to_yuv(x)), IMAGES),
    standardised=(image.per_image_standardization, IMAGES),
    edges=(image.sobel_edges, IMAGES),
    gradients=(image.image_gradients, IMAGES),
    patches=(
        lambda x: image.extract_patches(x, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"),
        IMAGES,
    ),
    patches_gradient=(
        gradient_of(
            lambda x: image.extract_patches(x, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
        ),
        IMAGES,
    ),
    variation=(image.total_variation, IMAGES),
    similarity=(lambda x, y: image.ssim(x, y, 1.0), IMAGES, IMAGES),
    noise_ratio=(lambda x, y: image.psnr(x, y, 1.0), IMAGES, IMAGES),
    projective=(
        lambda x: tf.raw_ops.ImageProjectiveTransformV3(
            images=x,
            transforms=tf.eye(1, 8),
            output_shape=[16, 16],
            fill_value=0.0,
            interpolation="BILINEAR",
            fill_mode="CONSTANT",
        ),
        IMAGES,
    ),
    boxes_drawn=(
        lambda x, b: image.draw_bounding_boxes(x, b[None], [[1.0, 0.0, 0.0]]),
        F(1, 16, 16, 3),
        BOXES,
    ),
    suppression_padded=(
        lambda b, s: image.non_max_suppression_padded(b, s, 4, pad_to_max_output_size=True),
        BOXES,
        F(6),
    ),
    suppression_combined=(
        lambda b, s: image.combined_non_max_suppression(b[None, :, None], s[None], 2, 4),
        BOXES,
        F(6, 3),
    ),
    box_sampled=(lambda b: image.sample_distorted_bounding_box([16, 16, 3], b[None])[0], BOXES),
    converted=(lambda x: image.convert_image_dtype(x, tf.float32), U8(2, 16, 16, 3)),
    converted_back=(lambda x: image.convert_image_dtype(x, tf.uint8, saturate=True), IMAGES),
)
