"""Uses of TensorFlow beside its operations: each step checks itself and prints its name."""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import tensorflow as tf  # noqa: E402

DEVICES = tf.config.list_physical_devices("GPU")


def the_device_is_found() -> None:
    assert len(DEVICES) == 1
    assert tf.config.experimental.get_device_details(DEVICES[0])["device_name"].endswith("(simulated)")
    tf.config.experimental.set_memory_growth(DEVICES[0], True)


def a_first_operation() -> None:
    assert float(tf.reduce_sum(tf.ones([100, 10]) * 2)) == 2000
    print(f"first operation after {time.perf_counter() - BEGIN:.1f} s")


def memory_grows() -> None:
    before = tf.config.experimental.get_memory_info("GPU:0")["current"]
    block = tf.zeros([8 << 18])
    after = tf.config.experimental.get_memory_info("GPU:0")["current"]
    assert after - before >= block.shape[0] * 4, (before, after)


def out_of_memory_is_an_error_and_less_works() -> None:
    elements = 1 << 28  # a gigabyte, of a slice of less
    while True:
        try:
            block = tf.random.uniform([elements])
        except tf.errors.ResourceExhaustedError:
            elements //= 2
            continue
        break
    assert (1 << 20) < elements < (1 << 28), elements
    assert 0.4 < float(tf.reduce_mean(block)) < 0.6


def pinned_memory_and_copies() -> None:
    data = tf.data.Dataset.range(1000).batch(100).prefetch(tf.data.AUTOTUNE)
    with tf.device("/GPU:0"):
        total = sum(int(tf.reduce_sum(batch)) for batch in data)
    assert total == 499500
    assert tf.where(tf.range(1000.0) > 990).numpy().ravel().tolist() == list(range(991, 1000))


def a_strategy_of_one_device() -> None:
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        variable = tf.Variable(2.0)
    total = strategy.reduce("SUM", strategy.run(lambda: variable * 3), axis=None)
    assert float(total) == 6.0


def a_collective_of_one_rank() -> None:
    @tf.function
    def reduce(x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.CollectiveReduceV2(
            input=x, group_size=1, group_key=1, instance_key=1, ordering_token=[], merge_op="Add", final_op="Id",
            communication_hint="nccl",
        )  # fmt: skip

    with tf.device("/GPU:0"):
        assert reduce(tf.constant([1.0, 2.0])).numpy().tolist() == [1.0, 2.0]


def saving() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        kept = tf.train.Checkpoint(x=tf.Variable([1.0, 2.0]))
        path = kept.save(f"{folder}/kept")
        kept.x.assign([0.0, 0.0])
        kept.restore(path)
        assert kept.x.numpy().tolist() == [1.0, 2.0]


def a_profile_is_written() -> None:
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        tf.reduce_sum(tf.ones([10, 10]) * 3)
        tf.profiler.experimental.stop()
        assert list(pathlib.Path(folder).rglob("*.xplane.pb"))


def main() -> None:
    for step in (
        the_device_is_found,
        a_first_operation,
        memory_grows,
        pinned_memory_and_copies,
        a_strategy_of_one_device,
        a_collective_of_one_rank,
        saving,
        out_of_memory_is_an_error_and_less_works,
        a_profile_is_written,
    ):
        step()
        print(step.__name__, flush=True)


if __name__ == "__main__":
    main()
