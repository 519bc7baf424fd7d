"""The audit table in Chinese: everything that the pool writes into it itself."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import gpukernel.pool
from gpukernel.client.admin import AuditEntry
from gpukernel.client.audit import sentence
from hub_spawner.console.audit_words import ACTIONS, change_words, import_words, subject_words, who_words
from hub_spawner.i18n import Texts

CHINESE, ENGLISH = Texts("zh"), Texts("en")
COURSE = {"title": "ML", "weight": 1.0, "members": {"prof": "instructor"}, "offers": ["V100 × 0.02"]}
MORE = {**COURSE, "offers": ["V100 × 0.02", "V100 × 0.1"], "start": "at_start"}


def entry(action: str, subject: str, before: object = "", after: object = "") -> AuditEntry:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in (before, after)]
    return AuditEntry(0.0, "prof", action, subject, *texts)


SAID = [
    (entry("course", "course ml101", COURSE, MORE), "课程 ml101：可选规格 + V100 × 0.1，内核何时请求切片 + 启动时"),
    (entry("course", "course ml101", COURSE, ""), "课程 ml101：课程：− 课程 ml101"),
    (entry("delegate", "gpu1/0", "pool GPU-1", "slurm, then pool"), "gpu1/0：由谁分配：pool GPU-1 → slurm，之后 pool"),
    (entry("device", "gpu1/0", "GPU-1", "its server has it no more"), "gpu1/0：设备：GPU-1 → 其服务器已没有该设备"),
    (entry("device", "gpu1/0", "its server has it no more", "there again GPU-1"), "gpu1/0：设备：其服务器已没有该设备 → 重新出现 GPU-1"),
    (entry("device", "gpu1/0", "", "critical error XID 79; restart the agent when it is mended"), "gpu1/0：设备：+ 严重错误 XID 79；修复后请重启代理"),
    (entry("device", "gpu1/0", "there again", "taken out by hand"), "gpu1/0：设备：重新出现 → 已手动停用"),
    (entry("drain", "gpu1", "in use", "drained"), "gpu1：停用：使用中 → 已停用"),
    (entry("end", "course ml101: anna", "lease 3f2a", "prof ended it: 下课"), "课程 ml101：anna：结束切片：租约 3f2a → prof 结束了它：下课"),
    (entry("end", "no course: anna", "lease 3f2a", "root ended it"), "无课程：anna：结束切片：租约 3f2a → root 结束了它"),
    (entry("forget", "gpu1", "gpk1", "forgotten"), "gpu1：移除服务器：gpk1 → 已移除"),
    (entry("gives way", "lease 3f2a of anna", "", "to an interactive request of course hpc, at 10:00:00"), "anna 的租约 3f2a：切片让出：+ 让给课程 hpc 的交互式请求，时间 10:00:00"),
    (entry("gives way", "lease 3f2a of anna", "", "to an interactive request, at 10:00:00"), "anna 的租约 3f2a：切片让出：+ 让给交互式请求，时间 10:00:00"),
    (entry("half-life", "half-life", "604800.0", "86400.0"), "课程已用量的半衰期：7d → 1d"),
    (entry("held", "student:ml101", "", "3 slices have the new times"), "课程 ml101 的每名学生：现有切片：+ 3 个切片改用新的时间"),
    (entry("import", "3690d450a169595b"), "courses.yaml：已导入文件"),
    (entry("least-run", "least-run", "600.0", "60.0"), "切片让出前的时间：10min → 1min"),
    (entry("message", "course ml101: anna", "", "下课前请保存。"), "课程 ml101：anna：消息：+ 下课前请保存。"),
    (entry("notice", "notice", "60.0", "90.0"), "切片让出前的通知时间：1min → 90s"),
    (entry("queue", "course ml101: anna", "place 3 of 3", "place 1 of 3 in the course's queue"), "课程 ml101：anna：排队位置：第 3 位，共 3 位 → 课程队列第 1 位，共 3 位"),
    (entry("quota", "pool", "", {"hours_week": 12.5}), "资源池：每周 GPU 小时 + 12.5"),
    (entry("quota", "without_course", {"leases": 1}, {"leases": 0}), "不属于课程的请求：同时持有的切片数 1 → 0"),
    (entry("quota", "course:ml101", {"devices": 0.8}, {"devices": 0.7}), "课程 ml101：同时占用的设备数 0.8 → 0.7"),
    (entry("quota", "instructor:ml101", "", {"leases": 2}), "课程 ml101 的每名教师：同时持有的切片数 + 2"),
    (entry("quota", "person:*", "", {"leases": 2}), "每个人：同时持有的切片数 + 2"),
    (entry("quota", "person:anna", "", {"leases": 2}), "anna：同时持有的切片数 + 2"),
    (entry("reservation", "reservation of ml101", "", "tue, thu 10:00–12:00 1.5 V100, preempts"), "课程 ml101 的预留：预留时段：+ 周二，周四 10:00–12:00 1.5 V100，到时可让他人离开"),
    (entry("reservation", "reservation of ml101", "2026-12-01 08:30–24:00 2 devices", ""), "课程 ml101 的预留：预留时段：− 2026-12-01 08:30–24:00 2 块设备"),
    (entry("reset", "gpu1", "gpk1 machine", ""), "gpu1：重置服务器身份：− gpk1 machine"),
    (entry("resize", "course ml101: anna", "lease 3f2a", "655 MiB"), "课程 ml101：anna：调整：租约 3f2a → 655 MiB"),
    (entry("server", "anna server", "open", "its server was stopped"), "anna server：JupyterHub 服务器：已打开 → 其服务器已停止"),
    (entry("term", "term", "0.0", "1788307200.0"), "学期：+ 2026-09-0"),
    (entry("timezone", "timezone", "", "Europe/Berlin"), "时区：+ Europe/Berlin"),
    (entry("token", "gpk1", "person anna", "revoked"), "gpk1：令牌：person anna → 已吊销"),
    (entry("token", "gpk1", "person anna", "renewed"), "gpk1：令牌：person anna → 已续期"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "said"), SAID, ids=[one.action for one, _ in SAID])
def test_an_entry_is_said_in_the_reader_s_language(one: AuditEntry, said: str) -> None:
    shown = f"{subject_words(CHINESE, one)}：{'，'.join(change_words(CHINESE, one))}"
    assert shown.startswith(said)
    assert len(shown) < len(said) + 4  # the day of a term depends on the time zone


def test_each_kind_of_change_that_the_pool_notes_is_among_them() -> None:
    noted = set()
    for path in Path(gpukernel.pool.__file__ or "").parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                place = {"note": 3, "changed": 0, "_write_down": 2}.get(name)
                if place is not None and len(node.args) > place:
                    action = node.args[place]
                    if isinstance(action, ast.Constant) and isinstance(action.value, str):
                        noted.add(action.value)
    assert len(noted) > 15
    noted |= {"half-life", "notice", "least-run"}  # as `write_policy` makes their names
    assert noted == set(ACTIONS) == {one.action for one, _ in SAID}


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("prof", "prof"),
        ("agent of gpu1", "gpu1 的代理"),
        ("the queue", "队列"),
        ("root through hub", "root（经 hub）"),
        ("prof (instructor by hub)", "prof（由 hub 认定的教师）"),
    ],
)
def test_who_it_was_is_said_in_the_reader_s_language(who: str, said: str) -> None:
    assert who_words(CHINESE, who) == said
    assert who_words(ENGLISH, who) == who


def test_a_line_of_an_import_is_in_the_reader_s_language() -> None:
    line = f"course ml101: {json.dumps(COURSE)} → {json.dumps(MORE)}"
    assert import_words(CHINESE, line) == "课程 ml101：可选规格 + V100 × 0.1，内核何时请求切片 + 启动时"
    line = "reservation of ml101: nothing → tue 10:00–12:00 0.5 devices"
    assert import_words(CHINESE, line) == "课程 ml101 的预留：预留时段：+ 周二 10:00–12:00 0.5 块设备"
    assert import_words(CHINESE, "term: 0.0 → 1788307200.0").startswith("学期：+ 2026-09-0")


@pytest.mark.parametrize("one", [one for one, _ in SAID], ids=[one.action for one, _ in SAID])
def test_english_says_what_the_command_line_says(one: AuditEntry) -> None:
    """But for a field's label, nothing differs."""
    shown = subject_words(ENGLISH, one)
    if shown != ENGLISH.gettext(ACTIONS[one.action]):
        assert sentence(one).startswith(f"prof: {shown}: ")
    assert not re.search("[\u4e00-\u9fff]", shown)
