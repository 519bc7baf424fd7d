// libcudnn beside the simulated GPU: handles, and what becomes of operation graphs.
#include "simgpu_libraries/cudnn/graphs/graph.h"
#include "simgpu_libraries/cudnn/operations.h"
#include "simgpu_libraries/openblas.h"

namespace gpukernel::libraries::cudnn {

using namespace simgpu_libraries::cudnn;

namespace {
// There is one engine, and it has no knobs.
constexpr int64_t ENGINES = 1;

int parsed(const Node& graph, std::shared_ptr<Program>& program) {
    program = std::make_shared<Program>();
    std::string what;
    const int status = parse(graph, *program, what);
    if (status && !what.empty()) refused("an operation graph", what.c_str());
    return status;
}
}  // namespace

int check_graph(Node& graph, Handle&, int64_t& engines) {
    std::shared_ptr<Program> program;
    engines = ENGINES;
    return parsed(graph, program);
}

int find_engines(const Node& graph, Handle&, int, std::vector<Engine>& found) {
    std::shared_ptr<Program> program;
    const int status = parsed(graph, program);
    if (!status) found.push_back({0, static_cast<int64_t>(program->workspace), {}, {}, {}});
    return status;
}

int describe_engine(const Node& graph, Handle& handle, Engine& engine) {
    std::vector<Engine> found;
    if (engine.index < 0 || engine.index >= ENGINES) return BAD_PARAM;
    return find_engines(graph, handle, 0, found);
}

int make_plan(Node& plan, const Node& graph, Handle&, const Engine& engine, int64_t& workspace) {
    if (engine.index < 0 || engine.index >= ENGINES || !engine.knobs.empty()) return BAD_PARAM;
    std::shared_ptr<Program> program;
    const int status = parsed(graph, program);
    workspace = static_cast<int64_t>(program->workspace);
    plan.own = program;
    return status;
}

int execute(Handle& handle, const Node& plan, const Pack& pack) {
    return run({handle, "cudnnBackendExecute"}, *static_cast<const Program*>(plan.own.get()), pack);
}

size_t version() { return OWN_VERSION; }

GPUKERNEL_EXPORT int cudnnCreate(void** handle) {
    if (!handle) return BAD_PARAM;
    *handle = nullptr;
    static constexpr const char* NEEDED[] = {"sgemm", "dgemm"};
    if (!simgpu_libraries::can_make_handle(NEEDED)) return NOT_INITIALIZED;
    *handle = keep_handle(new Handle);
    return SUCCESS;
}

GPUKERNEL_EXPORT int cudnnDestroy(void* handle) {
    Handle* const own = drop_handle(handle);
    delete own;  // what was submitted knows all that it needs
    return own ? SUCCESS : NOT_INITIALIZED;
}

#include "cudnn_simulated.inc"
#include "cudnn_unsupported.inc"

}  // namespace gpukernel::libraries::cudnn
