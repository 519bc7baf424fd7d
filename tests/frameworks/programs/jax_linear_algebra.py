"""Linear algebra, Fourier transforms and sparse matrices of JAX on the slice and on the CPU, compared.  Prints JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse
from jax.scipy import linalg as scipy_linalg

jax.config.update("jax_default_matmul_precision", "highest")
CPU = jax.devices("cpu")[0]
random = np.random.default_rng(3)
A = random.standard_normal((24, 24)).astype(np.float32)
TALL = random.standard_normal((30, 12)).astype(np.float32)
MANY = random.standard_normal((5, 8, 8)).astype(np.float32)
COMPLEX = (A + 1j * A[::-1]).astype(np.complex64)
POSITIVE = (A @ A.T + 24 * np.eye(24)).astype(np.float32)
SIGNAL = random.standard_normal((6, 60)).astype(np.float32)
CUBE = random.standard_normal((4, 6, 10)).astype(np.float32)
SPARSE = np.where(random.random((20, 16)) < 0.2, random.standard_normal((20, 16)), 0).astype(np.float32)
LOW, HIGH = (random.standard_normal(40).astype(np.float32) * 0.2 for _ in range(2))


def rebuilt_by_qr(a: Any) -> Any:
    q, r = jnp.linalg.qr(a)
    return jnp.abs(r), q @ r


def rebuilt_by_svd(a: Any) -> Any:
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    return s, (u * s[..., None, :]) @ vh


def rebuilt_by_eigh(a: Any) -> Any:
    a = (a + jnp.swapaxes(a.conj(), -1, -2)) / 2
    w, v = jnp.linalg.eigh(a)
    return w, (v * w[..., None, :]) @ jnp.swapaxes(v.conj(), -1, -2)


def rebuilt_by_eig(a: Any) -> Any:
    w, v = jnp.linalg.eig(a)
    return jnp.sum(w), v @ jnp.diag(w) @ jnp.linalg.inv(v)


def rebuilt_by_lu(a: Any) -> Any:
    p, lower, upper = scipy_linalg.lu(a)
    return lower, upper, p @ lower @ upper


def with_sparse(form: str, right: int) -> Any:
    m = getattr(sparse, form).fromdense(jnp.asarray(SPARSE))
    return m @ jnp.ones((16, right) if right else 16)


OPERATIONS: dict[str, Callable[[], Any]] = {
    "fft": lambda: jnp.fft.fft(SIGNAL),
    "ifft": lambda: jnp.fft.ifft(SIGNAL + 1j * SIGNAL[::-1]),
    "rfft": lambda: jnp.fft.rfft(SIGNAL),
    "irfft": lambda: jnp.fft.irfft(jnp.fft.rfft(SIGNAL)),
    "irfft of an odd length": lambda: jnp.fft.irfft(jnp.fft.rfft(SIGNAL[:, :45]), 45),
    "fft2": lambda: jnp.fft.fft2(CUBE),
    "ifft2": lambda: jnp.fft.ifft2(CUBE),
    "fftn": lambda: jnp.fft.fftn(CUBE),
    "rfftn": lambda: jnp.fft.rfftn(CUBE),
    "irfftn": lambda: jnp.fft.irfftn(jnp.fft.rfftn(CUBE)),
    "fft of a prime length": lambda: jnp.fft.fft(SIGNAL[:, :59]),
    "grad of rfft": lambda: jax.grad(lambda x: jnp.sum(jnp.abs(jnp.fft.rfft(x)) ** 2))(jnp.asarray(SIGNAL)),
    "cholesky": lambda: jnp.linalg.cholesky(jnp.asarray(POSITIVE)),
    "batched cholesky": lambda: jnp.linalg.cholesky(MANY @ MANY.swapaxes(1, 2) + 8 * np.eye(8, dtype=np.float32)),
    "grad of cholesky": lambda: jax.grad(lambda a: jnp.sum(jnp.linalg.cholesky(a)))(jnp.asarray(POSITIVE)),
    "cho_solve": lambda: scipy_linalg.cho_solve(scipy_linalg.cho_factor(jnp.asarray(POSITIVE)), jnp.asarray(A)),
    "qr": lambda: rebuilt_by_qr(jnp.asarray(A)),
    "qr of a tall matrix": lambda: rebuilt_by_qr(jnp.asarray(TALL)),
    "complex qr": lambda: rebuilt_by_qr(jnp.asarray(COMPLEX)),
    "batched qr": lambda: rebuilt_by_qr(jnp.asarray(MANY)),
    "svd": lambda: rebuilt_by_svd(jnp.asarray(TALL)),
    "svd of a wide matrix": lambda: rebuilt_by_svd(jnp.asarray(TALL.T)),
    "complex svd": lambda: rebuilt_by_svd(jnp.asarray(COMPLEX)),
    "batched svd": lambda: rebuilt_by_svd(jnp.asarray(MANY)),
    "singular values": lambda: jnp.linalg.svd(jnp.asarray(TALL), compute_uv=False),
    "pinv": lambda: jnp.linalg.pinv(jnp.asarray(TALL)),
    "eigh": lambda: rebuilt_by_eigh(jnp.asarray(A)),
    "complex eigh": lambda: rebuilt_by_eigh(jnp.asarray(COMPLEX)),
    "batched eigh": lambda: rebuilt_by_eigh(jnp.asarray(MANY)),
    "eigvalsh": lambda: jnp.linalg.eigvalsh(jnp.asarray(POSITIVE)),
    "eig": lambda: rebuilt_by_eig(jnp.asarray(A)),
    "inv": lambda: jnp.linalg.inv(jnp.asarray(POSITIVE)),
    "batched inv": lambda: jnp.linalg.inv(jnp.asarray(MANY)) / 10,
    "det": lambda: jnp.linalg.det(jnp.asarray(MANY)),
    "slogdet": lambda: jnp.linalg.slogdet(jnp.asarray(A)),
    "solve": lambda: jnp.linalg.solve(jnp.asarray(POSITIVE), jnp.asarray(A)),
    "batched solve": lambda: jnp.linalg.solve(jnp.asarray(MANY + 8 * np.eye(8, dtype=np.float32)), jnp.asarray(MANY)),
    "grad of solve": lambda: jax.grad(lambda a: jnp.sum(jnp.linalg.solve(a, jnp.ones(24))))(jnp.asarray(POSITIVE)),
    "lu": lambda: rebuilt_by_lu(jnp.asarray(A)),
    "lu_solve": lambda: scipy_linalg.lu_solve(scipy_linalg.lu_factor(jnp.asarray(POSITIVE)), jnp.ones(24)),
    "lstsq": lambda: jnp.linalg.lstsq(jnp.asarray(TALL), jnp.ones(30))[0],
    "matrix_power": lambda: jnp.linalg.matrix_power(jnp.asarray(POSITIVE) / 30, -2),
    "solve_triangular": lambda: scipy_linalg.solve_triangular(jnp.asarray(POSITIVE), jnp.ones(24), lower=True),
    "expm": lambda: scipy_linalg.expm(jnp.asarray(MANY[0]) / 4),
    "tridiagonal": lambda: jnp.sum(jnp.abs(scipy_linalg.eigh_tridiagonal(jnp.asarray(LOW + 2), jnp.asarray(HIGH[1:]), eigvals_only=True))),
    "tridiagonal_solve": lambda: jax.lax.linalg.tridiagonal_solve(
        jnp.asarray(LOW).at[0].set(0), jnp.full(40, 2.0), jnp.asarray(HIGH).at[-1].set(0), jnp.ones((40, 3))
    ),
    "BCOO times a vector": lambda: with_sparse("BCOO", 0),
    "BCOO times a matrix": lambda: with_sparse("BCOO", 5),
    "BCSR times a vector": lambda: with_sparse("BCSR", 0),
    "BCSR times a matrix": lambda: with_sparse("BCSR", 5),
    "CSR times a vector": lambda: with_sparse("CSR", 0),
    "COO times a matrix": lambda: with_sparse("COO", 5),
    "CSR to dense": lambda: sparse.CSR.fromdense(jnp.asarray(SPARSE)).todense(),
}  # fmt: skip


def main() -> None:
    failed = {}
    for name, operation in OPERATIONS.items():
        try:
            with jax.default_device(CPU):
                wanted = [np.asarray(one) for one in jax.tree.leaves(operation())]
            got = [np.asarray(one) for one in jax.tree.leaves(operation())]
            for one, other in zip(got, wanted, strict=True):
                scale = max(float(np.abs(other).max(initial=0)), 1e-6)
                np.testing.assert_allclose(one / scale, other / scale, rtol=1e-4, atol=1e-4)
        except Exception as error:
            failed[name] = " ".join(str(error).split())[:300]
    print(
        json.dumps(
            {"device": str(jax.devices()[0]), "passed": len(OPERATIONS) - len(failed), "failed": failed}
        )
    )


if __name__ == "__main__":
    main()
