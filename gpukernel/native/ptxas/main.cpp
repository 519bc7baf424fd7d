// A ptxas that hands PTX on as it is: the simulated GPU executes PTX, and every driver loads it where a cubin
// may be ("CUDA Binary Utilities" has the options' names; what they ask of machine code has no meaning here).
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace {

// CUDA's last version that compiles for all simulated models, which compilers take the version of their PTX
// from.
constexpr char VERSION[] = "ptxas: that of gpukernel " GPUKERNEL_VERSION
                           ", which hands PTX on for a simulated GPU\n"
                           "Cuda compilation tools, release 12.9, V12.9.86\n";

// The options whose value is the next word, where it is not in the same one (-arch sm_70, -arch=sm_70, -O3).
constexpr std::string_view WITH_VALUE[] = {
    "Ofast-compile",
    "Ofc",
    "allow-expensive-optimizations",
    "def-load-cache",
    "dlcm",
    "def-store-cache",
    "dscm",
    "device-function-maxrregcount",
    "func-maxrregcount",
    "device-stack-protector",
    "entry",
    "e",
    "fmad",
    "force-load-cache",
    "flcm",
    "force-store-cache",
    "fscm",
    "gpu-name",
    "arch",
    "input-as-string",
    "ias",
    "machine",
    "m",
    "maxntid",
    "maxrregcount",
    "minnctapersm",
    "opt-level",
    "O",
    "options-file",
    "optf",
    "position-independent-code",
    "pic",
    "regAllocOptLevel",
    "register-usage-level",
    "regUsageLevel",
    "sanitize",
    "split-compile",
};

int fatal(const std::string& sentence) {
    std::fprintf(stderr, "ptxas fatal   : %s\n", sentence.c_str());
    return 1;
}

}  // namespace

int main(int count, char** words) {
    std::string input, output = "elf.o";
    for (int i = 1; i < count; ++i) {
        const std::string_view word = words[i];
        if (word.size() < 2 || word[0] != '-') {
            if (!input.empty())
                return fatal("one file of PTX is taken, not '" + input + "' and '" + words[i] + "'");
            input = word;
            continue;
        }
        std::string_view name = word.substr(word[1] == '-' ? 2 : 1);
        const size_t equals = name.find('=');
        const bool value_here = equals != std::string_view::npos;
        name = name.substr(0, equals);
        if (name == "version" || name == "V") return std::fputs(VERSION, stdout) < 0;
        const bool is_output = name == "output-file" || name == "o";
        if (!is_output &&
            std::find(std::begin(WITH_VALUE), std::end(WITH_VALUE), name) == std::end(WITH_VALUE))
            continue;
        if (!value_here && i + 1 == count)
            return fatal("the option '" + std::string(word) + "' needs a value");
        const std::string value = value_here ? words[i] + word.find('=') + 1 : words[++i];
        if (name == "input-as-string" || name == "ias" || name == "options-file" || name == "optf")
            return fatal("the option '" + std::string(word) + "' is not taken here: name a file of PTX");
        if (is_output) output = value;
    }
    if (input.empty())
        return fatal("no file of PTX is named; write ptxas -arch=sm_70 FILE.ptx -o FILE.cubin");
    std::ifstream from(input, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(from), {}};
    if (!from) return fatal("'" + input + "' cannot be read: " + std::strerror(errno));
    text.erase(std::find(text.begin(), text.end(), '\0'), text.end());
    if (text.find(".version") == std::string::npos)
        return fatal("'" + input + "' is no PTX: it has no .version");
    std::ofstream to(output, std::ios::binary | std::ios::trunc);
    to.write(text.c_str(), static_cast<std::streamsize>(text.size() + 1)).flush();  // text ends with a zero
    if (!to) return fatal("'" + output + "' cannot be written: " + std::strerror(errno));
    return 0;
}
