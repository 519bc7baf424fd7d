"""What a course does with TensorFlow and Keras: pipelines, models of every kind, training, saving, and what lies beside."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from lessons import Lessons

keras = tf.keras
layers = keras.layers
lesson = Lessons()


def numbers(*shape: int, seed: int = 0) -> Any:
    """Return normal numbers that are the same on every device."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def labels(count: int, classes: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, classes, count).astype(np.int32)


def fitted(
    model: Any, x: Any, y: Any, optimizer: Any = None, loss: Any = None, **settings: Any
) -> list[float]:
    """Return the loss of each of two epochs, and the length of the predictions."""
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # XLA, which Keras takes by itself on a device alone, draws other numbers for dropout.
    model.compile(optimizer or keras.optimizers.Adam(1e-3), loss, jit_compile=False)
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, **settings).history
    predicted = model.predict(x, batch_size=16, verbose=0)
    return [*history["loss"], *(float(np.linalg.norm(one)) for one in tf.nest.flatten(predicted))]


@lesson
def words_through_recurrent_layers() -> list[float]:
    inputs = keras.Input((12,), dtype="int32")
    x = layers.Embedding(50, 16, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(12, return_sequences=True))(x)
    x = layers.GRU(8, return_sequences=True)(x)
    x = layers.SimpleRNN(6)(x)
    words = 1 + labels(64 * 12, 49).reshape(64, 12)
    words[:, 9:] = 0
    return fitted(keras.Model(inputs, layers.Dense(2)(x)), words, labels(64, 2))


@lesson
def recurrent_layers_without_a_mask() -> list[float]:
    inputs = keras.Input((12, 5))
    x = layers.LSTM(16, return_sequences=True)(inputs)
    x, *_ = layers.LSTM(8, return_state=True, go_backwards=True)(layers.TimeDistributed(layers.Dense(6))(x))
    return fitted(keras.Model(inputs, layers.Dense(3)(x)), numbers(64, 12, 5), labels(64, 3))


@lesson
def signals_with_two_inputs() -> list[float]:
    one, two = keras.Input((40, 3)), keras.Input((5,))
    x = layers.Conv1D(8, 5, padding="causal", activation="relu")(one)
    x = layers.MaxPooling1D(2)(layers.BatchNormalization()(x))
    x = layers.SeparableConv1D(12, 3)(layers.SpatialDropout1D(0.2)(x))
    x = layers.Concatenate()([layers.GlobalMaxPooling1D()(x), layers.Dense(6, "gelu")(two)])
    model = keras.Model([one, two], layers.Dense(1, "sigmoid")(layers.Dropout(0.3)(x)))
    loss, y = keras.losses.BinaryCrossentropy(), labels(64, 2).astype(np.float32)[:, None]
    return fitted(
        model, [numbers(64, 40, 3), numbers(64, 5, seed=1)], y, loss=loss, sample_weight=np.linspace(0, 1, 64)
    )


def pictured() -> Any:
    parts = [keras.Input((16, 16, 3)), layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization()]
    parts += [layers.MaxPooling2D(), layers.Dropout(0.2), layers.Flatten(), layers.Dense(4)]
    return keras.Sequential(parts)


@lesson
def callbacks_and_validation() -> list[float]:
    model = pictured()
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "best.weights.h5")
        calls = [
            keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
            keras.callbacks.ModelCheckpoint(kept, save_best_only=True, save_weights_only=True),
            keras.callbacks.CSVLogger(Path(folder, "log.csv")),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            keras.callbacks.TensorBoard(Path(folder, "logs"), histogram_freq=1, profile_batch=0),
        ]
        history = model.fit(
            numbers(96, 16, 16, 3),
            labels(96, 4),
            16,
            4,
            verbose=0,
            shuffle=False,
            validation_split=0.25,
            callbacks=calls,
        ).history
        assert kept.exists()
        assert list(Path(folder, "logs").rglob("events*"))
        model.load_weights(kept)
    return [
        *history["loss"],
        *history["val_loss"],
        model.evaluate(numbers(32, 16, 16, 3), labels(32, 4), verbose=0)[0],
    ]


@lesson
def models_that_are_kept() -> list[float]:
    model, x = pictured(), numbers(32, 16, 16, 3)
    losses = fitted(model, x, labels(32, 4))
    wanted = model.predict(x, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "kept.keras"))
        model.save(Path(folder, "kept.h5"))
        model.export(Path(folder, "served"))
        again = [keras.models.load_model(Path(folder, name)) for name in ("kept.keras", "kept.h5")]
        kept = tf.saved_model.load(str(Path(folder, "served")))
        served = kept.serve(tf.constant(x))
        for other in (*(one.predict(x, verbose=0) for one in again), served.numpy()):
            np.testing.assert_allclose(other, wanted, rtol=1e-4, atol=1e-5)
        again[0].fit(x, labels(32, 4), verbose=0)  # its optimizer's state is there
        other = (
            keras.Model.from_config(model.get_config())
            if not isinstance(model, keras.Sequential)
            else keras.models.clone_model(model)
        )
        other.set_weights(model.get_weights())
        np.testing.assert_allclose(other.predict(x, verbose=0), wanted, rtol=1e-4, atol=1e-5)
    return losses


@lesson
def a_pipeline_of_records() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "data.tfrecord"))
        with tf.io.TFRecordWriter(path) as writer:
            for i in range(48):
                picture = tf.io.encode_png(
                    tf.cast(np.abs(np.tanh(numbers(16, 16, 3, seed=i))) * 255, tf.uint8)
                ).numpy()
                feature = {
                    "picture": tf.train.Feature(bytes_list=tf.train.BytesList(value=[picture])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[i % 4])),
                }
                writer.write(
                    tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
                )
        wanted = {
            "picture": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }

        def read(record: Any) -> Any:
            one = tf.io.parse_single_example(record, wanted)
            picture = tf.image.convert_image_dtype(tf.io.decode_png(one["picture"], 3), tf.float32)
            return tf.image.flip_left_right(picture), one["label"]

        data = tf.data.TFRecordDataset(path).map(read, tf.data.AUTOTUNE).cache().shuffle(48, seed=1)
        data = data.batch(16, drop_remainder=True).repeat().prefetch(tf.data.AUTOTUNE)
        model = pictured()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9), loss, steps_per_execution=2, jit_compile=False
        )
        return list(model.fit(data, epochs=3, steps_per_epoch=4, verbose=0).history["loss"])


@lesson
def mixed_precision() -> list[float]:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        found = fitted(pictured(), numbers(64, 16, 16, 3), labels(64, 4), keras.optimizers.SGD(0.01))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return [round(one, 1) for one in found]  # as far as sums of halves carry


@lesson
def a_known_network_tuned_finely() -> list[float]:
    base = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, include_top=False, weights=None)
    base.trainable = False
    inputs = keras.Input((32, 32, 3))
    x = layers.GlobalAveragePooling2D()(base(layers.RandomFlip("horizontal", seed=1)(inputs), training=False))
    model = keras.Model(inputs, layers.Dense(3)(x))
    x, y = numbers(32, 32, 32, 3), labels(32, 3)
    found = fitted(model, x, y)
    base.trainable = True
    # Its batches of sixteen points carry a last digit into the second place of the next epoch, on any device.
    return [*found, round(fitted(model, x, y, keras.optimizers.SGD(1e-4))[0], 1)]


@lesson
def attention_with_dropout() -> list[float]:
    inputs = keras.Input((10,), dtype="int32")
    places = layers.Embedding(10, 16)(tf.range(10))
    x = layers.Embedding(30, 16)(inputs) + places
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, 8, dropout=0.2)(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(x + attended)
        x = layers.LayerNormalization()(
            x + layers.Dense(16)(layers.Dropout(0.1)(layers.Dense(32, "relu")(x)))
        )
    model = keras.Model(inputs, layers.Dense(30)(x))
    words = labels(64 * 10, 30).reshape(64, 10)
    return fitted(model, words, np.roll(words, -1, 1), keras.optimizers.AdamW(1e-3, clipnorm=1.0))


class Scale(layers.Layer):  # type: ignore[misc, name-defined]
    """A layer of one's own, with weights and a loss."""

    def build(self, shape: Any) -> None:
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        self.add_loss(tf.reduce_sum(self.factor**2) * 1e-2)
        return x * self.factor


@lesson
def a_training_by_hand() -> list[float]:
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, "swish", kernel_regularizer="l2"), Scale(), layers.Dense(3)]
    )
    rate = keras.optimizers.schedules.CosineDecay(1e-2, 10)
    optimizer = keras.optimizers.RMSprop(rate, global_clipnorm=1.0)
    loss_of, accuracy = (
        keras.losses.CategoricalCrossentropy(from_logits=True),
        keras.metrics.CategoricalAccuracy(),
    )

    @tf.function(jit_compile=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = model(x, training=True)
            loss = loss_of(tf.one_hot(y, 3), scores) + tf.add_n(model.losses)
        slopes = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(slopes, model.trainable_variables, strict=True))
        accuracy.update_state(tf.one_hot(y, 3), scores)
        return loss

    data = tf.data.Dataset.from_tensor_slices((numbers(96, 8), labels(96, 3))).batch(16)
    losses = [float(step(x, y)) for _ in range(2) for x, y in data]
    return [*losses, float(accuracy.result())]


@lesson
def two_networks_against_each_other() -> list[float]:
    up = keras.Sequential([
        keras.Input((8,)), layers.Dense(4 * 4 * 8), layers.Reshape((4, 4, 8)), layers.BatchNormalization(),
        layers.LeakyReLU(), layers.Conv2DTranspose(8, 4, 2, "same"), layers.Conv2DTranspose(1, 4, 2, "same", activation="tanh"),
    ])  # fmt: skip
    down = keras.Sequential([
        keras.Input((16, 16, 1)), layers.Conv2D(8, 4, 2, "same"), layers.LeakyReLU(), layers.Flatten(), layers.Dense(1)
    ])  # fmt: skip
    one, other = keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-4)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def step(real: Any, noise: Any) -> Any:
        with tf.GradientTape() as first, tf.GradientTape() as second:
            made = up(noise, training=True)
            true, false = down(real, training=True), down(made, training=True)
            cheats = loss_of(tf.ones_like(false), false)
            finds = loss_of(tf.ones_like(true), true) + loss_of(tf.zeros_like(false), false)
        for optimizer, tape, loss, model in ((one, first, cheats, up), (other, second, finds, down)):
            slopes = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(slopes, model.trainable_variables, strict=True))
        return cheats, finds

    found = [step(numbers(16, 16, 16, 1, seed=i), numbers(16, 8, seed=i)) for i in range(4)]
    return [float(one) for pair in found for one in pair]


class Variational(keras.Model):  # type: ignore[misc, name-defined]
    """A variational autoencoder with a training step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = keras.Sequential(
            [layers.Conv2D(8, 3, 2, "same", activation="relu"), layers.Flatten(), layers.Dense(8)]
        )
        self.wide = keras.Sequential([
            layers.Dense(8 * 8 * 4, "relu"), layers.Reshape((8, 8, 4)), layers.UpSampling2D(interpolation="bilinear"),
            layers.Conv2D(1, 3, padding="same"),
        ])  # fmt: skip
        self.seed = keras.random.SeedGenerator(5)

    def call(self, x: Any) -> Any:
        mean, spread = tf.split(self.narrow(x), 2, -1)
        self.add_loss(-0.5 * tf.reduce_mean(1 + spread - mean**2 - tf.exp(spread)))
        return self.wide(mean + tf.exp(spread / 2) * keras.random.normal(tf.shape(mean), seed=self.seed))

    def train_step(self, data: Any) -> Any:
        x, _ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - x) ** 2) + sum(self.losses)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@lesson
def an_autoencoder_with_a_step_of_its_own() -> list[float]:
    x = numbers(64, 16, 16, 1)
    return fitted(Variational(), x, x)


@lesson
def frames_in_space_and_time() -> list[float]:
    inputs = keras.Input((4, 8, 8, 2))
    x = layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True)(inputs)
    x = layers.Conv3D(4, 3, padding="same", activation="relu")(x)
    x = layers.AveragePooling3D((1, 2, 2))(x)
    x = layers.TimeDistributed(layers.SeparableConv2D(6, 3))(x)
    x = layers.DepthwiseConv2D(2)(x[:, 0])
    x = layers.GroupNormalization(3)(x)
    return fitted(
        keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x))), numbers(16, 4, 8, 8, 2), labels(16, 2)
    )


@lesson
def words_as_they_are_written() -> list[float]:
    texts = tf.constant(["the cat sat", "a dog ran away", "the dog sat", "cats run"] * 8)
    vectors = layers.TextVectorization(max_tokens=20, output_sequence_length=5)
    vectors.adapt(texts)
    scale, look = layers.Normalization(), layers.StringLookup(vocabulary=["yes", "no"])
    scale.adapt(numbers(32, 3) * 4 + 1)
    model = keras.Sequential([layers.Embedding(20, 8), layers.GlobalAveragePooling1D(), layers.Dense(3)])
    found = fitted(model, vectors(texts), look(tf.constant(["yes", "no"] * 16)).numpy())
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0], []])
    sparse = tf.sparse.from_dense(np.eye(4, dtype=np.float32) * 2)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), 0)
    more = [
        tf.reduce_sum(ragged, 1),
        tf.sparse.sparse_dense_matmul(sparse, numbers(4, 3)),
        scale(numbers(32, 3)),
    ]
    more += [
        tf.cast(table.lookup(tf.constant(["b", "z"])), tf.float32),
        tf.strings.to_number(tf.constant(["1.5"])),
    ]
    return [*found, *(float(tf.norm(one)) for one in more)]


@lesson
def slopes_of_slopes() -> list[float]:
    x, model = tf.constant(numbers(4, 16, 16, 3)), pictured()
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(model(x) ** 2)
        slope = inner.gradient(y, x)
        far = tf.reduce_mean((tf.norm(tf.reshape(slope, [4, -1]), axis=1) - 1) ** 2)
    v = tf.Variable(numbers(5))
    with tf.GradientTape(persistent=True) as tape:
        z = tf.sin(v) * tf.reduce_sum(v)
    with tf.autodiff.ForwardAccumulator(v, tf.ones(5)) as forward:
        w = tf.exp(v)
    found = [slope, outer.gradient(far, x), tape.jacobian(z, v), forward.jvp(w)]
    return [float(tf.norm(one)) for one in found]


@lesson
def compiled_and_eager() -> list[float]:
    found = []
    for settings in ({"jit_compile": True}, {"jit_compile": False}, {"run_eagerly": True}):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=metrics, **settings)
        history = model.fit(
            numbers(48, 8), labels(48, 3), 16, 2, verbose=0, shuffle=False, class_weight={0: 1, 1: 2, 2: 3}
        )
        found += [*history.history["loss"], history.history["accuracy"][-1]]
    areas = keras.metrics.AUC()
    areas.update_state(labels(64, 2), np.abs(np.tanh(numbers(64))))
    return [*found, float(areas.result())]


def begin() -> None:
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)


if __name__ == "__main__":
    tf.config.experimental.enable_tensor_float_32_execution(False)
    if sys.argv[1] == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif not tf.config.list_physical_devices("GPU"):
        raise SystemExit("TensorFlow found no GPU")
    lesson.run(begin)
