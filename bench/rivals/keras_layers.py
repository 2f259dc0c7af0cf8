"""The rows of bench/features.py by Keras' preprocessing layers in tf.data, on one thread: python keras_layers.py FILE BATCH text|tensors

Prints CPU seconds and rows. With `text` the engine's text is made by TensorFlow's operators for strings; with `tensors` none is.
"""
# mypy: ignore-errors
# (its packages are in an environment of their own)

import sys
import time

import keras
import tensorflow as tf

NUMBERS, TEXTS = 13, 26
MEAN, DEVIATION = 2.5, 1.5  # those of bench/features.py
DEFAULTS = [[""]] + [[0.0]] * NUMBERS + [[""]] * TEXTS


def main() -> None:
    path, batch, wanted = sys.argv[1:]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # A layer a column, as Keras' guides do. Salts: the same text is another value in another column.
    normalizations = [keras.layers.Normalization(axis=None, mean=MEAN, variance=DEVIATION**2) for _ in range(NUMBERS)]
    hashings = [keras.layers.Hashing(num_bins=(1 << 31) - 1, salt=place) for place in range(TEXTS)]

    @tf.function
    def transform(lines):
        labels, *columns = tf.io.decode_csv(lines, DEFAULTS, field_delim="\t", use_quote_delim=False)
        numbers = tf.stack(
            [layer(tf.math.log1p(each)) for layer, each in zip(normalizations, columns[:NUMBERS], strict=True)], axis=1
        )
        keys = tf.stack([layer(each) for layer, each in zip(hashings, columns[NUMBERS:], strict=True)], axis=1)
        if wanted == "tensors":
            return numbers, keys
        # Nine digits are a float32.
        texts = tf.strings.as_string(numbers, precision=9, shortest=True)
        numbers = tf.strings.reduce_join(texts, axis=1, separator=" ")
        keys = tf.strings.reduce_join(tf.strings.as_string(keys), axis=1, separator=" 1 ")
        return tf.strings.join(["1 1 1 ", labels, f" {NUMBERS} ", numbers, " 1 ", keys, "\n"])

    dataset = tf.data.TextLineDataset(path).batch(int(batch)).map(transform)
    seconds = []
    for _ in range(3):
        began, rows = time.process_time(), 0
        for made in dataset:
            rows += int((made[0] if wanted == "tensors" else made).shape[0])
            if wanted == "text":
                b"".join(made.numpy().tolist())
        # The first time includes tracing.
        seconds.append(time.process_time() - began)
    print(min(seconds), rows)


if __name__ == "__main__":
    main()
