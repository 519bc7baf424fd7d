#include "shim/transport/early_reads.h"

#include <algorithm>
#include <cstring>

#include "shim/managed/managed.h"
#include "shim/transport/connection.h"

namespace gpukernel::shim {

namespace {
// After so many times that nothing of it was used, little is read early; and no copy that is not read back.
constexpr int PATIENCE = 16;

// Takes `bytes` from what is left of a text; none where there are not so many.
std::string_view take(std::string_view& from, size_t bytes) {
    const std::string_view taken = from.substr(0, bytes);
    from.remove_prefix(taken.size());
    return taken.size() == bytes ? taken : std::string_view();
}

// Leaves as many of them as one question may have, the newest, which are last.
void fit(std::vector<wire::EarlyRead>& reads) {
    uint64_t bytes = 0;
    size_t first = reads.size(), left = wire::MOST_EARLY_READS;
    while (first && left-- && (bytes += reads[first - 1].bytes) <= wire::MOST_EARLY_BYTES) --first;
    reads.erase(reads.begin(), reads.begin() + static_cast<std::ptrdiff_t>(first));
}

void expect_copied(Connection& connection, uint64_t stream, std::vector<wire::EarlyRead>& reads) {
    EarlyReads& early = connection.early_reads;
    const auto& [copy, copied] = early.copied;
    if (!early.copies || copied.stream != stream || copy != connection.finished.changed) return;
    if (std::find(reads.begin(), reads.end(), copied.read) != reads.end()) return;
    --early.copies;
    reads.push_back(copied.read);
}
}  // namespace

EarlyQuestion expect_reads(Connection& connection, uint64_t stream) {
    EarlyReads& early = connection.early_reads;
    EarlyQuestion question{settles(connection, stream), {}};
    if (question.settles == Settles::no || connection.foresight.shares) return question;
    if (early.in_vain >= PATIENCE && ++early.skipped % PATIENCE) return question;
    for (const EarlyReads::Expected& one : early.expected)
        if (one.stream == stream) question.reads.push_back(one.read);
    question.counts = !question.reads.empty();
    expect_copied(connection, stream, question.reads);
    fit(question.reads);
    return question;
}

void note_small_copy(Connection& connection, uint64_t stream, const wire::EarlyRead& read) {
    connection.early_reads.copied = {connection.foresight.requests, {stream, read}};
}

void note_function(Connection& connection, const News::Function& function) {
    EarlyReads& mine = connection.early_reads;
    const auto& [request, stream, question, text] = function;
    if (question.settles == Settles::no) return;
    if (request > mine.settled) mine.settled = request, mine.stream = stream;
    if (question.reads.empty()) return;
    if (question.counts) mine.in_vain = mine.used ? 0 : mine.in_vain + 1, mine.used = false;
    std::string_view early = text;
    const std::string_view rests = take(early, 1);  // whether the default stream had nothing left to do
    if (rests.empty() || request < mine.read) return;
    if (question.settles == Settles::but_for_the_default_stream && !rests[0]) return;
    mine.read = request, mine.here.clear(), mine.any = false;
    for (const wire::EarlyRead& read : question.reads) {
        const std::string_view there = take(early, 1);
        if (there.empty()) break;
        if (!there[0]) continue;
        if (const std::string_view bytes = take(early, read.bytes); bytes.size() == read.bytes)
            mine.here.emplace_back(read, bytes), mine.any = true;
    }
}

bool take_early(Connection& connection, const DeviceRead& read, void* to) {
    EarlyReads& early = connection.early_reads;
    if (read.bytes > connection.most_early_bytes || has_managed()) return false;
    if (!early.any && !connection.news.any) return false;
    std::string bytes;
    {
        std::lock_guard lock(connection.mutex);
        look_at_news(connection);
        if (connection.finished.changed > early.read) return early.here.clear(), early.any = false;
        const auto found = std::find_if(early.here.begin(), early.here.end(), [&](const auto& one) {
            return one.first == wire::EarlyRead{read.address, read.bytes};
        });
        if (found == early.here.end() || connection.foresight.shares || !may_tell(connection, read.stream))
            return false;
        early.used = true;
        if (found->first == early.copied.second.read) early.copies = PATIENCE;
        bytes = found->second;
        const auto again = std::find_if(early.expected.begin(), early.expected.end(),
                                        [&](const auto& one) { return one.read == found->first; });
        if (again != early.expected.end()) std::rotate(again, again + 1, early.expected.end());
    }
    std::memcpy(to, bytes.data(), bytes.size());  // not under the mutex: a page fault may need it
    return true;
}

void learn_read(Connection& connection, const DeviceRead& read) {
    EarlyReads& early = connection.early_reads;
    look_at_news(connection);
    if (!early.settled || connection.finished.changed > early.settled || !read.bytes ||
        read.bytes > connection.most_early_bytes)
        return;
    const EarlyReads::Expected one{early.stream, {read.address, read.bytes}};
    if (early.copied.second == one && early.copied.first == connection.finished.changed) {
        early.copies = PATIENCE;
        return;
    }
    std::erase(early.expected, one);
    if (early.expected.size() == wire::MOST_EARLY_READS) early.expected.erase(early.expected.begin());
    early.expected.push_back(one);
}

}  // namespace gpukernel::shim
