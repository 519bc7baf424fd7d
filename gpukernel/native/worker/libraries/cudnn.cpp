// cuDNN: its handles, questions about operation graphs, and the execution of plans.
#include "worker/libraries/cudnn.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "worker/libraries/cudnn_descriptors.h"
#include "worker/session/session.h"

namespace gpukernel::worker {

using namespace libraries::cudnn;

namespace {
#include "cudnn_worker.inc"

constexpr uint32_t FUNCTIONS = std::size(cudnn_functions);
constexpr size_t MOST_PLANS = 1024;
constexpr uint64_t PLAN_BYTES = 64 << 10;  // of the host's memory for one, beside its words

class Numbers {  // of an answer
  public:
    explicit Numbers(std::vector<char>& outputs) : outputs_(outputs) {}
    void add(int64_t number) {
        const char* const from = reinterpret_cast<const char*>(&number);
        outputs_.insert(outputs_.end(), from, from + sizeof number);
    }

  private:
    std::vector<char>& outputs_;
};

int create(LibraryArguments& in, MathLibrary& library, LibraryObject& object) {
    auto* const version = reinterpret_cast<size_t (*)()>(library.function("cudnnGetVersion"));
    auto* const make = reinterpret_cast<int (*)(void**)>(library.function("cudnnCreate"));
    object.destroy = reinterpret_cast<int (*)(void*)>(library.function("cudnnDestroy"));
    if (!version || !make || !object.destroy) return NOT_INITIALIZED;
    const int status = make(&object.object);
    if (status) return status;
    object.extra = std::make_shared<Plans>();
    Numbers(in.outputs()).add(static_cast<int64_t>(version()));
    return SUCCESS;
}

int set_stream(LibraryArguments& in) {
    LibraryObject& object = *in.object;
    if (object.stream == in.stream()) return SUCCESS;
    auto* const set = reinterpret_cast<int (*)(void*, CUstream)>(object.library.function("cudnnSetStream"));
    const int status = set ? set(object.object, in.stream()) : NOT_SUPPORTED;
    if (!status) object.stream = in.stream();
    return status;
}

// The library's own sentence about what it has just refused.
void say_why(LibraryArguments& in) {
    auto* const last =
        reinterpret_cast<void (*)(char*, size_t)>(in.object->library.function("cudnnGetLastErrorString"));
    char sentence[512] = {};
    if (last) last(sentence, sizeof sentence - 1);
    in.reason = sentence;
}

int graph(LibraryArguments& in) {
    Graph graph(in.object->library);
    if (const int status = graph.read(in)) return status;
    int64_t engines = 0, got = 0;
    const int status = graph.backend.get(graph.descriptor, GRAPH_ENGINES, TYPE_INT64, 1, got, &engines);
    if (!status) Numbers(in.outputs()).add(engines);
    return status;
}

// An engine's number and notes, and a workspace and knobs where it is one of a configuration.
int describe(Backend& backend, void* engine, void* config, Numbers& out) {
    int64_t index = 0, workspace = 0, got = 0;
    if (const int status = backend.get(engine, ENGINE_INDEX, TYPE_INT64, 1, got, &index)) return status;
    if (config && backend.get(config, CONFIG_WORKSPACE, TYPE_INT64, 1, got, &workspace)) workspace = 0;
    out.add(index), out.add(workspace);
    for (const auto& [name, type] : {std::pair{ENGINE_NUMERICAL_NOTES, TYPE_NUMERICAL_NOTE},
                                     std::pair{ENGINE_BEHAVIOR_NOTES, TYPE_BEHAVIOR_NOTE}}) {
        int32_t notes[MOST_NOTES] = {};
        int64_t count = 0;
        if (backend.get(engine, name, type, MOST_NOTES, count, notes)) count = 0;
        count = std::clamp<int64_t>(count, 0, MOST_NOTES);
        out.add(count);
        for (int64_t i = 0; i < count; ++i) out.add(notes[i]);
    }
    std::vector<void*> knobs(MOST_KNOBS);
    int64_t count = 0;
    if (config) {
        for (void*& knob : knobs)
            if (const int status = backend.make(KNOB_CHOICE, knob)) return status;
        if (backend.get(config, CONFIG_KNOBS, TYPE_DESCRIPTOR, MOST_KNOBS, count, knobs.data())) count = 0;
        count = std::clamp<int64_t>(count, 0, MOST_KNOBS);
    }
    out.add(count);
    for (int64_t i = 0; i < count; ++i) {
        int32_t type = 0;
        int64_t value = 0;
        int status = backend.get(knobs[static_cast<size_t>(i)], KNOB_TYPE, TYPE_KNOB, 1, got, &type);
        if (!status)
            status = backend.get(knobs[static_cast<size_t>(i)], KNOB_VALUE, TYPE_INT64, 1, got, &value);
        if (status) return status;
        out.add(type), out.add(value);
    }
    return SUCCESS;
}

int heuristics(LibraryArguments& in) {
    const auto mode = in.number<int32_t>();
    Graph graph(in.object->library);
    if (const int status = graph.read(in)) return status;
    constexpr int TYPE_MODE = 8;
    Backend& backend = graph.backend;
    void* asked = nullptr;
    int status = backend.make(HEURISTICS, asked);
    if (!status) status = backend.set(asked, HEURISTICS_GRAPH, TYPE_DESCRIPTOR, 1, &graph.descriptor);
    if (!status) status = backend.set(asked, HEURISTICS_MODE, TYPE_MODE, 1, &mode);
    if (!status) status = backend.finish(asked);
    int64_t count = 0;
    if (!status) status = backend.get(asked, HEURISTICS_RESULTS, TYPE_DESCRIPTOR, 0, count, nullptr);
    if (status) return status;
    count = std::clamp<int64_t>(count, 0, MOST_CONFIGS);
    std::vector<void*> configs(static_cast<size_t>(count));
    for (void*& config : configs)
        if ((status = backend.make(ENGINE_CONFIG, config))) return status;
    if (count) status = backend.get(asked, HEURISTICS_RESULTS, TYPE_DESCRIPTOR, count, count, configs.data());
    if (status) return status;
    configs.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, static_cast<int64_t>(configs.size()))));
    Numbers out(in.outputs());
    out.add(static_cast<int64_t>(configs.size()));
    for (void* config : configs) {
        void* engine = nullptr;
        int64_t got = 0;
        if ((status = backend.make(ENGINE, engine))) return status;
        if ((status = backend.get(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, got, &engine))) return status;
        if ((status = describe(backend, engine, config, out))) return status;
    }
    return SUCCESS;
}

int engine_notes(LibraryArguments& in) {
    const auto index = in.number<int64_t>();
    Graph graph(in.object->library);
    if (const int status = graph.read(in)) return status;
    void* engine = nullptr;
    int status = graph.backend.make(ENGINE, engine);
    if (!status) status = graph.backend.set(engine, ENGINE_GRAPH, TYPE_DESCRIPTOR, 1, &graph.descriptor);
    if (!status) status = graph.backend.set(engine, ENGINE_INDEX, TYPE_INT64, 1, &index);
    if (!status) status = graph.backend.finish(engine);
    Numbers out(in.outputs());
    return status ? status : describe(graph.backend, engine, nullptr, out);
}

// The plan that these words describe, made where it is new.
int plan_of(LibraryArguments& in, std::string_view words, std::shared_ptr<Plan>& plan) {
    auto& plans = *std::static_pointer_cast<Plans>(in.object->extra);
    if (const auto it = plans.all.find(words); it != plans.all.end()) {
        plan = it->second;
    } else {
        auto charge = in.session().host_charge(PLAN_BYTES + 4 * words.size());
        if (!charge) return ALLOC_FAILED;
        plan = std::make_shared<Plan>(in.object->library, std::move(*charge));
        LibraryArguments own(in, words);
        if (const int status = read_plan(own, *plan)) return status;
        if (own.left()) return BAD_PARAM;
        if (plans.all.size() >= MOST_PLANS)
            plans.all.erase(std::min_element(plans.all.begin(), plans.all.end(), [](auto& a, auto& b) {
                return a.second->used < b.second->used;
            }));
        plans.all.emplace(words, plan);
    }
    plan->used = ++plans.turn;
    return SUCCESS;
}

int make_plan(LibraryArguments& in) {
    std::shared_ptr<Plan> plan;
    if (const int status = plan_of(in, in.rest(), plan)) return status;
    Numbers(in.outputs()).add(plan->workspace);
    return SUCCESS;
}

int execute(LibraryArguments& in) {
    const uint64_t count = in.word();
    if (in.failed() || count > MOST_GRAPH_WORDS) return BAD_PARAM;
    const auto* const words = static_cast<const char*>(in.bytes(count * sizeof(uint64_t)));
    if (in.failed()) return BAD_PARAM;
    std::shared_ptr<Plan> plan;
    if (const int status = plan_of(in, {words, count * sizeof(uint64_t)}, plan)) return status;
    const uint64_t workspace = in.word(), bytes = in.word(), tensors = in.word();
    if (in.failed() || tensors > MOST_TENSORS || bytes < static_cast<uint64_t>(plan->workspace))
        return BAD_PARAM;
    if (bytes && !in.in_lease(workspace, bytes)) return BAD_PARAM;
    std::vector<int64_t> ids;
    std::vector<const void*> places;
    std::map<int64_t, GraphTensor> lacking = plan->graph.tensors;
    std::vector<std::unique_ptr<std::max_align_t[]>> values;
    for (uint64_t i = 0; i < tensors; ++i) {
        const auto id = in.number<int64_t>();
        const uint64_t size = in.word();
        const auto it = lacking.find(id);
        if (in.failed() || it == lacking.end() || size > 256) return BAD_PARAM;
        if (it->second.by_value) {
            if (size != it->second.bytes) return BAD_PARAM;
            const void* const from = in.bytes(size);
            if (in.failed()) return BAD_PARAM;
            values.push_back(std::make_unique<std::max_align_t[]>(256 / sizeof(std::max_align_t)));
            places.push_back(std::memcpy(values.back().get(), from, size));
        } else {
            const uint64_t address = in.word();
            // An operand whose factor is 0 is nowhere.
            if (in.failed() || size || (address && !in.in_lease(address, it->second.bytes))) return BAD_PARAM;
            places.push_back(reinterpret_cast<const void*>(address));
        }
        ids.push_back(id);
        lacking.erase(it);
    }
    if (in.left() ||
        std::any_of(lacking.begin(), lacking.end(), [](auto& one) { return one.second.outside; }))
        return BAD_PARAM;
    auto* const run =
        reinterpret_cast<int (*)(void*, void*, void*)>(in.object->library.function("cudnnBackendExecute"));
    if (!run) return NOT_SUPPORTED;
    Backend backend(in.object->library);
    void* pack = nullptr;
    void* const room = bytes ? reinterpret_cast<void*>(workspace) : nullptr;
    const auto all = static_cast<int64_t>(ids.size());
    int status = set_stream(in);
    if (!status) status = backend.make(VARIANT_PACK, pack);
    if (!status) status = backend.set(pack, PACK_IDS, TYPE_INT64, all, ids.data());
    if (!status) status = backend.set(pack, PACK_POINTERS, TYPE_POINTER, all, places.data());
    if (!status) status = backend.set(pack, PACK_WORKSPACE, TYPE_POINTER, 1, &room);
    if (!status) status = backend.finish(pack);
    return status ? status : run(in.handle(), plan->descriptor, pack);
}

int run(LibraryArguments& in, uint32_t function) {
    int status = NOT_SUPPORTED;
    in.name = "cudnnBackendFinalize";
    switch (function) {
        case GRAPH:
            status = graph(in);
            break;
        case HEURISTIC:
            status = heuristics(in);
            break;
        case ENGINE_NOTES:
            status = engine_notes(in);
            break;
        case MAKE_PLAN:
            status = make_plan(in);
            break;
        case RECURRENT_SIZES:
            in.name = "cudnnGetRNNTempSpaceSizes";
            status = recurrent_sizes(in);
            break;
        case RECURRENT_WEIGHTS:
            in.name = "cudnnGetRNNWeightParams";
            status = recurrent_weights(in);
            break;
        case DROPOUT_STATES:
            in.name = "cudnnDropoutGetStatesSize";
            status = dropout_states(in);
            break;
        case DROPOUT_SET:
            in.name = "cudnnSetDropoutDescriptor";
            status = set_stream(in);
            if (!status) status = dropout_set(in);
            break;
        case EXECUTE:
            in.name = "cudnnBackendExecute";
            status = execute(in);
            break;
        default:
            if (function >= FUNCTIONS) return in.name = "a function of cuDNN", NOT_SUPPORTED;
            in.name = cudnn_functions[function].name;
            status = set_stream(in);
            if (!status) status = cudnn_functions[function].run(in);
    }
    if (status / 1000 * 1000 == NOT_SUPPORTED) say_why(in);
    return status;
}

CUresult result_of(int status) {
    switch (status / 1000 * 1000) {  // cuDNN's statuses are categories with numbers below
        case SUCCESS:
            return status == SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
        case BAD_PARAM:
            return CUDA_ERROR_INVALID_VALUE;
        case NOT_SUPPORTED:
            return CUDA_ERROR_NOT_SUPPORTED;
        case INTERNAL_ERROR:
            return status == ALLOC_FAILED || status == 4004 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
        default:
            return status == NOT_INITIALIZED ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_UNKNOWN;
    }
}
}  // namespace

const LibraryCalls cudnn_calls{"libcudnn.so", create, run, result_of, ALLOC_FAILED};

}  // namespace gpukernel::worker
