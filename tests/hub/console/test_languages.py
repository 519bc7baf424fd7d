"""Pages in Chinese: every text of theirs, and what the pool says in them with its figures; real Hub, real pool."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po

import gpukernel.client
import gpukernel.common
import gpukernel.pool
import hub_spawner
from gpukernel.common.i18n import say
from hub_spawner.i18n import Texts
from tests.conftest import Pool, eventually
from tests.hub.console.people import Holders, Visitor, words, words_in
from tests.hub.hub import ADMIN, Hub

CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.5"}


@pytest.fixture
def prof(running: tuple[Hub, Pool]) -> Visitor:
    visitor = Visitor(running[0], "prof")
    visitor.headers.update(CHINESE)
    return visitor


def test_what_the_pool_refuses_stands_in_the_reader_s_language_with_its_figures(
    running: tuple[Hub, Pool], prof: Visitor, holders: Holders
) -> None:
    lease = holders.hold("anna", 0.45)
    holders.wait("ben", 0.4)
    page = words(prof.see("course/ml101"))
    assert "课程 ml101 已占用其 0.80 块设备中的 0.45；再加 0.40 放不下。" in page
    assert "does not fit" not in page
    answer = prof.fill(f"course/ml101/lease/{lease.id}/resize", share="0.75")
    assert answer.status_code == 422
    assert "ml101 的学生 anna 同时最多占用 0.50 块设备；所请求的 0.75 永远无法满足。" in words(answer)
    answer = prof.fill("course/ml101/quota", whom="course", devices="2", apply="yes")
    assert "只有资源池管理员可以设置 course:ml101 的限额；教师可以设置自己学生的限额。" in words(answer)
    assert "您没有名为 hpc 的课程。" in words(prof.see("course/hpc"))
    fields = {"begins": "10:00", "ends": "12:00", "days": "1", "devices": "5", "model": "V100"}
    answer = words(prof.fill("course/ml101/reservation", **fields))
    assert re.search(r"\d+月\d\d日（周二） 10:00：课程 ml101 同时最多占用 0.8 块设备；5 放不下。", answer), (
        answer
    )
    assert "days：应为 1 到 366 的数。" in words(prof.see("course/ml101/use?days=0"))
    # The same for whoever reads English, and for scripts.
    english = Visitor(running[0], "prof")
    assert "Course ml101 holds 0.45 of its 0.80 devices; 0.40 more does not fit." in words(
        english.see("course/ml101")
    )
    live = prof.get(f"{prof.at}api/courses/ml101/live", timeout=60).json()
    assert (
        live["waits"][0]["reason"] == "Course ml101 holds 0.45 of its 0.80 devices; 0.40 more does not fit."
    )


def test_the_page_before_a_server_starts_is_in_the_reader_s_language(
    running: tuple[Hub, Pool], holders: Holders
) -> None:
    hub, _ = running
    both = Visitor(hub, "prof")  # teaches one course and is in another

    def page(headers: dict[str, str]) -> str:
        answer = both.get(f"{hub.url}/hub/spawn/prof", headers=headers, timeout=60)
        return answer.content.decode()  # the Hub says in the page that it is UTF-8

    text = page(CHINESE)
    assert '<fieldset lang="zh-CN">' in text
    assert "用于哪门课程？" in text
    assert "空闲 40 个" in text  # 0.02 of a V100, as often as the course's 0.8 devices have it
    holders.hold("anna", 0.45)
    holders.hold("ben", 0.34)
    assert "课程 ml101 已占用其 0.80 V100中的 0.79；再加 0.10 放不下。" in page(CHINESE)
    english = page({})
    assert '<fieldset lang="en">' in english
    assert "Course ml101 holds 0.79 of its 0.80 V100; 0.10 more does not fit." in english


def test_the_pages_around_a_start_are_in_the_reader_s_language(running: tuple[Hub, Pool]) -> None:
    hub, _ = running
    prof = Visitor(hub, "prof")
    spawn = f"{hub.url}/hub/spawn/prof"

    def seen(address: str, data: dict[str, str] | None = None, **headers: str) -> str:
        how = "POST" if data else "GET"
        answer = prof.request(how, address, data=data, headers=headers, timeout=60)
        return words_in(answer.content.decode())

    before = seen(spawn, **CHINESE)
    assert "启动您的服务器" in before
    assert re.search(r"V100 × 0.1 .* 启动 ", before), before
    # A choice that cannot be: the page after it, and the one to which it leads, whose request says nothing of a language.
    seen(spawn, {"_xsrf": prof.xsrf, "course": "chem"}, **CHINESE)
    pending = f"{hub.url}/hub/spawn-pending/prof"
    eventually(lambda: "您的服务器未能启动" in seen(pending), 60)
    assert "您不在课程 chem 中；您的课程：hpc, ml101。" in seen(pending)
    assert "重试" in seen(pending)
    assert "Start your server" in seen(spawn)
    # One that can: while it starts, and when it is stopped.
    seen(spawn, **CHINESE)
    starting = seen(spawn, {"_xsrf": prof.xsrf, "course": "hpc"}, **CHINESE)
    assert "您的服务器正在启动。" in starting
    assert "启动完成后，本页会自动跳转。" in starting
    eventually(lambda: hub.ask("GET", "/users/prof").json()["servers"].get("", {}).get("ready"), 150)
    hub.stop_server("prof")
    assert "您的服务器未在运行" in seen(f"{hub.url}/hub/user/prof/")


def test_a_person_s_own_page_is_in_the_reader_s_language_to_its_units(
    running: tuple[Hub, Pool], holders: Holders
) -> None:
    anna = Visitor(running[0], "anna")
    holders.hold("anna", 0.35, description="lesson.ipynb")
    holders.wait("ben", 0.5)
    holders.wait("anna", 0.15)
    # Before the table of what she held there stands what she has used of her hours, some seconds of a device.
    eventually(lambda: re.search(r"since Monday .* ml101 \d+ s .*The last 14", words(anna.see("my"))))
    anna.headers.update(CHINESE)
    page = words(anna.see("my"))
    queue, _, hours = page.partition("周一以来的 GPU 小时")
    # She is second in the queue of all, as her notebook says.
    assert re.search(r"waits ml101 2 GPU × 0.15 .*课程 ml101 已占用", queue), queue
    assert "前面还有请求在等待更多" in queue
    assert re.search(r"ml101 \d+ 秒", hours), hours
    # What she held in other tests has names of its own.
    shown = page.partition("最近 14 天")[0]
    left = re.sub(r"lesson.ipynb|waits|ml101|JupyterHub|V100\S*|Tesla|simulated|UTC|English", "", shown)
    assert set(re.findall(r"[A-Za-z]{4,}", left)) <= {"anna"}, left


def test_the_administrator_s_changes_are_in_the_reader_s_language(
    running: tuple[Hub, Pool], holders: Holders
) -> None:
    admin = Visitor(running[0], ADMIN)
    admin.headers.update(CHINESE)
    lease = holders.hold("anna", 0.3)
    holders.ask("send_message", lease.id, "下课前请保存。")
    file = (running[0].home / "courses.yaml").read_text()
    changed = file.replace("[teachers]", "[teachers, tutors]").replace("0.8", "0.7")
    preview = words(admin.fill("admin/courses.yaml", yaml=changed))
    assert "课程 hpc：教师用户组 + tutors" in preview
    assert "课程 ml101：同时占用的设备数 0.8 → 0.7" in preview
    admin.fill("admin/courses.yaml", yaml=changed, apply="yes")
    page = words(admin.see("admin"))
    message = "root 课程 ml101：anna 消息：+ 下课前请保存。"
    assert message in page
    assert "courses.yaml 已导入文件" in page
    assert "教师用户组 + tutors" in page
    assert "1 个切片，" in page
    # The filter knows what is read and what the pool keeps.
    for about, found in (("课程 ml101：anna", True), ("course ml101: anna", True), ("课程 hpc", False)):
        assert (message in words(admin.see(f"admin?about={about}"))) is found
    english = Visitor(running[0], ADMIN)
    page = words(english.see("admin"))
    assert "root course ml101: anna Message: + 下课前请保存。" in page
    assert "Groups of instructors + tutors" in page


def test_the_mistakes_of_a_file_are_in_the_reader_s_language_with_their_lines(
    running: tuple[Hub, Pool], holders: Holders
) -> None:
    admin = Visitor(running[0], ADMIN)
    wrong = "timezone: Berlin/Europe\ncourses:\n  ml101:\n    weight: 0\n    students: anna\n    wieght: 2\n"
    english = words(admin.fill("admin/courses.yaml", yaml=wrong))
    assert "line 4: courses.ml101.weight: input should be greater than 0, not 0" in english
    admin.headers.update(CHINESE)
    page = html.unescape(words(admin.fill("admin/courses.yaml", yaml=wrong)))
    for sentence in (
        "第 1 行：timezone：没有这个时区；请写作 Europe/Berlin 这样的形式，而不是 'Berlin/Europe'",
        "第 4 行：courses.ml101.weight：应大于 0，而不是 0",
        "第 5 行：courses.ml101.students：应为列表，而不是 'anna'",
        "第 6 行：courses.ml101.wieght：此处没有这个条目",
    ):
        assert sentence in page
    # More than one answer of the pool can carry: it names some and how many there are.
    many = "courses:\n" + "".join(f"  c{n}: {{weight: 0}}\n" for n in range(200))
    page = words(admin.fill("admin/courses.yaml", yaml=many))
    assert page.count("应大于 0") == 50
    assert "should be" not in page
    assert "more" not in page
    page = words(admin.fill("admin/courses.yaml", yaml="courses: [\n"))
    assert "第 1 行：此处应有内容，却是 文件结尾" in page


def test_a_sentence_that_is_not_in_the_catalogue_stays_english() -> None:
    chinese = Texts("zh")
    assert chinese.of("Nobody translated this.") == "Nobody translated this."
    assert chinese.of(say("Nobody translated %(what)s.", what="this")) == "Nobody translated this."
    assert (
        chinese.of(say("%(why)s; position %(position)s in the queue.", why="No", position=1))
        == "No; position 1 in the queue."
    )
    inner = say("Others wait for %(model)s", model="T4 100%(x)s")
    assert chinese.of(say("%(why)s; your slice stays at %(size)s MiB for now.", why=inner, size=5)) == (
        "已有其他人在等待 T4 100%(x)s；切片暂时保持 5 MiB。"
    )


def test_every_text_of_the_pages_is_translated() -> None:
    keywords = {"_": None, "gettext": None, "ngettext": (1, 2), "later": None, "say": None}
    kinds = [("**.py", "python"), ("**/templates/**.html", "jinja2")]
    packages = (hub_spawner, gpukernel.pool, gpukernel.common, gpukernel.client)
    rooms = [Path(package.__file__ or "").parent for package in packages]
    with (rooms[0] / "locale" / "zh.po").open("rb") as file:
        catalog = read_po(file)
    used = {
        text if isinstance(text, str) else text[0]
        for room in rooms
        for _, _, text, _, _ in extract_from_dir(room, kinds, keywords=keywords)
    }
    assert len(used) > 250
    assert [text for text in sorted(used) if text not in catalog or not catalog[text].string] == []
    known = {
        message.id if isinstance(message.id, str) else message.id[0] for message in catalog if message.id
    }
    assert known <= used  # and nothing that is said no more
    for message in catalog:
        first = message.id if isinstance(message.id, str) else message.id[0]
        for translated in message.string if isinstance(message.string, tuple) else (message.string,):
            assert set(re.findall(r"%\(\w+\)s", translated)) == set(re.findall(r"%\(\w+\)s", first)), first
