#include "tls/tls.h"

#include <cpuid.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

namespace {
constexpr size_t HEAD = 5, TAG = 16, NONCE = 12, SECRET = 32;
constexpr uint8_t ALERT = 21, HANDSHAKE = 22, DATA = 23;
constexpr uint8_t KEY_UPDATE = 24, NEW_SESSION_TICKET = 4;
constexpr uint8_t BAD_RECORD_MAC = 20, UNKNOWN_PSK_IDENTITY = 115;
// AES-GCM bears 2^24.5 full records with one key (RFC 8446 section 5.5).
constexpr uint64_t RECORDS_OF_A_KEY = 1 << 23;

constexpr char ALTERED[] = "what came over TLS was altered on the way";
constexpr char SAYS_ALTERED[] = "the other end got data over TLS that was altered on the way";
constexpr char AGAINST_RULES[] = "what came over TLS is against the rules of TLS 1.3";

struct CipherFree {
    void operator()(EVP_CIPHER_CTX* one) const { EVP_CIPHER_CTX_free(one); }
};
using Cipher = std::unique_ptr<EVP_CIPHER_CTX, CipherFree>;
struct SslFree {
    void operator()(SSL* one) const { SSL_free(one); }
};
struct SessionFree {
    void operator()(SSL_SESSION* one) const { SSL_SESSION_free(one); }
};

// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1), of at most one block of SHA-256.
bool expand(const uint8_t* secret, std::string_view label, uint8_t* out, size_t size) {
    uint8_t info[64], block[SECRET];
    size_t at = 0;
    info[at++] = 0, info[at++] = static_cast<uint8_t>(size);
    info[at++] = static_cast<uint8_t>(6 + label.size());
    std::memcpy(info + at, "tls13 ", 6), at += 6;
    std::memcpy(info + at, label.data(), label.size()), at += label.size();
    info[at++] = 0;
    info[at++] = 1;  // the first block of HKDF-Expand
    unsigned length = sizeof block;
    const bool made = HMAC(EVP_sha256(), secret, SECRET, info, at, block, &length) != nullptr;
    std::memcpy(out, block, size);
    OPENSSL_cleanse(block, sizeof block);
    return made;
}

// The records of one direction.
class Direction {
  public:
    bool begin(const EVP_CIPHER* cipher, const uint8_t* secret, bool seals) {
        context_.reset(EVP_CIPHER_CTX_new());
        cipher_ = cipher, seals_ = seals;
        std::memcpy(secret_, secret, SECRET);
        return context_ && use_key();
    }
    ~Direction() { OPENSSL_cleanse(secret_, sizeof secret_), OPENSSL_cleanse(iv_, sizeof iv_); }
    uint64_t records() const { return sequence_; }

    bool next_key() { return expand(secret_, "traffic upd", secret_, SECRET) && use_key(); }

    // Writes the record of the pieces, whose last is the content's type.
    size_t seal(std::initializer_list<std::pair<const uint8_t*, size_t>> pieces, uint8_t type, uint8_t* out) {
        size_t length = 1 + TAG;
        for (auto [data, size] : pieces) length += size;
        set_head(out, length);
        int done = 0;
        if (!start(out)) return 0;
        uint8_t* to = out + HEAD;
        for (auto [data, size] : pieces) {
            if (size && EVP_CipherUpdate(context_.get(), to, &done, data, static_cast<int>(size)) != 1)
                return 0;
            to += size;
        }
        if (EVP_CipherUpdate(context_.get(), to, &done, &type, 1) != 1 ||
            EVP_CipherFinal_ex(context_.get(), to + 1, &done) != 1 ||
            EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, TAG, to + 1) != 1)
            return 0;
        return HEAD + length;
    }

    // Opens a record of `size` bytes of content, type and padding into `out` (all but the last byte) and
    // `last`.
    bool open(const uint8_t* record, size_t size, uint8_t* out, uint8_t& last) {
        const uint8_t* body = record + HEAD;
        int done = 0;
        uint8_t nothing[TAG];
        const auto room = static_cast<int>(size - 1);
        return start(record) &&
               EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, TAG,
                                   const_cast<uint8_t*>(body + size)) == 1 &&
               (!room || EVP_CipherUpdate(context_.get(), out, &done, body, room) == 1) &&
               EVP_CipherUpdate(context_.get(), &last, &done, body + room, 1) == 1 &&
               EVP_CipherFinal_ex(context_.get(), nothing, &done) == 1;
    }

    static void set_head(uint8_t* out, size_t length) {
        out[0] = DATA, out[1] = 3, out[2] = 3;
        out[3] = static_cast<uint8_t>(length >> 8), out[4] = static_cast<uint8_t>(length);
    }

  private:
    bool use_key() {
        uint8_t key[32];
        const int size = EVP_CIPHER_get_key_length(cipher_);
        const bool used = expand(secret_, "key", key, size) && expand(secret_, "iv", iv_, NONCE) &&
                          EVP_CipherInit_ex(context_.get(), cipher_, nullptr, key, nullptr, seals_) == 1;
        OPENSSL_cleanse(key, sizeof key);
        sequence_ = 0;
        return used;
    }
    // Each record has a nonce of its own, and its head is authenticated with it (RFC 8446 section 5.2).
    bool start(const uint8_t* head) {
        uint8_t nonce[NONCE];
        std::memcpy(nonce, iv_, NONCE);
        for (int i = 0; i < 8; ++i) nonce[4 + i] ^= static_cast<uint8_t>(sequence_ >> (56 - 8 * i));
        ++sequence_;
        int done = 0;
        return EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce, seals_) == 1 &&
               EVP_CipherUpdate(context_.get(), nullptr, &done, head, HEAD) == 1;
    }

    Cipher context_;
    const EVP_CIPHER* cipher_ = nullptr;
    bool seals_ = false;
    uint8_t secret_[SECRET] = {}, iv_[NONCE] = {};
    uint64_t sequence_ = 0;
};
}  // namespace

extern "C" struct gpukernel_tls {
    bool worker;
    uint8_t key[GPUKERNEL_TLS_KEY];
    std::string identity;
    std::unique_ptr<SSL, SslFree> ssl;  // until the handshake is done
    std::vector<uint8_t> in, out;
    size_t taken = 0, all = 0;
    uint8_t secrets[2][SECRET] = {};  // of the two directions: the worker's first
    int alert = 0;                    // that the other end sent
    uint8_t binding[GPUKERNEL_TLS_BINDING] = {};
    const char* error = "";
    uint64_t records_of_a_key = RECORDS_OF_A_KEY;
    Direction sealing, opening;

    ~gpukernel_tls() { forget(); }
    void forget() {
        OPENSSL_cleanse(key, sizeof key), OPENSSL_cleanse(secrets, sizeof secrets);
        ssl.reset();
    }
};

namespace {
gpukernel_tls* owner(const SSL* ssl) { return static_cast<gpukernel_tls*>(SSL_get_app_data(ssl)); }

// --- what OpenSSL reads and writes: buffers ---

int read_bytes(BIO* bio, char* to, int room) {
    auto* one = static_cast<gpukernel_tls*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const size_t there = std::min<size_t>(room, one->in.size() - one->taken);
    if (!there) return BIO_set_retry_read(bio), -1;
    std::memcpy(to, one->in.data() + one->taken, there);
    one->taken += there;
    return static_cast<int>(there);
}
int write_bytes(BIO* bio, const char* from, int size) {
    auto* one = static_cast<gpukernel_tls*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (one->out.size() + size > GPUKERNEL_TLS_FLIGHT) return -1;
    one->out.insert(one->out.end(), from, from + size);
    return size;
}
long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH; }

BIO_METHOD* buffers() {
    static BIO_METHOD* const method = [] {
        BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "gpukernel");
        BIO_meth_set_read(made, read_bytes);
        BIO_meth_set_write(made, write_bytes);
        BIO_meth_set_ctrl(made, control);
        return made;
    }();
    return method;
}

// --- the key ---

// Instructions for AES-GCM.  __builtin_cpu_supports says no where zig has compiled this, whatever the
// processor.
bool has_aes() {
    unsigned a, b, c, d;
    constexpr unsigned PCLMULQDQ = 1u << 1, AES = 1u << 25;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & AES) && (c & PCLMULQDQ);
}

SSL_SESSION* session_of(SSL* ssl) {
    static const uint8_t AES_128_GCM_SHA256[] = {0x13, 0x01};  // stands for its hash
    std::unique_ptr<SSL_SESSION, SessionFree> made(SSL_SESSION_new());
    const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, AES_128_GCM_SHA256);
    if (!made || !cipher ||
        SSL_SESSION_set1_master_key(made.get(), owner(ssl)->key, GPUKERNEL_TLS_KEY) != 1 ||
        SSL_SESSION_set_cipher(made.get(), cipher) != 1 ||
        SSL_SESSION_set_protocol_version(made.get(), TLS1_3_VERSION) != 1)
        return nullptr;
    return made.release();
}

int use_key(SSL* ssl, const EVP_MD* hash, const uint8_t** id, size_t* id_size, SSL_SESSION** session) {
    *id = nullptr, *id_size = 0, *session = nullptr;
    if (hash && !EVP_MD_is_a(hash, "SHA256")) return 1;
    if (!(*session = session_of(ssl))) return 0;
    *id = reinterpret_cast<const uint8_t*>(owner(ssl)->identity.data()),
    *id_size = owner(ssl)->identity.size();
    return 1;
}

int find_key(SSL* ssl, const uint8_t* id, size_t id_size, SSL_SESSION** session) {
    const std::string& known = owner(ssl)->identity;
    *session =
        nullptr;  // an unknown name is no error here: then there is no certificate, and the handshake fails
    if (id_size != known.size() || CRYPTO_memcmp(id, known.data(), id_size) != 0) return 1;
    return (*session = session_of(ssl)) != nullptr;
}

int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

// Keeps the keys of the records ("LABEL RANDOM SECRET" in hexadecimal): they are used here.
void keep_secret(const SSL* ssl, const char* line) {
    const std::string_view text(line);
    const int whose = text.starts_with("SERVER_TRAFFIC_SECRET_0 ")   ? 0
                      : text.starts_with("CLIENT_TRAFFIC_SECRET_0 ") ? 1
                                                                     : -1;
    if (whose < 0 || text.size() < 2 * SECRET) return;
    const char* at = line + text.size() - 2 * SECRET;
    for (size_t i = 0; i < SECRET; ++i)
        owner(ssl)->secrets[whose][i] = static_cast<uint8_t>(digit(at[2 * i]) << 4 | digit(at[2 * i + 1]));
}

void notice(const SSL* ssl, int where, int value) {
    if ((where & SSL_CB_READ_ALERT) == SSL_CB_READ_ALERT) owner(ssl)->alert = value & 0xff;
}

// The settings of all connections.  Never freed: there is no end of the process that this library would
// notice.
SSL_CTX* settings() {
    static SSL_CTX* const made = []() -> SSL_CTX* {
        // No configuration file of the machine's, and nothing that runs at the program's exit.
        if (OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr) != 1)
            return nullptr;
        SSL_CTX* one = SSL_CTX_new(TLS_method());
        if (!one) return nullptr;
        const char* ciphers = has_aes() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                        : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
        SSL_CTX_set_min_proto_version(one, TLS1_3_VERSION);
        SSL_CTX_set_max_proto_version(one, TLS1_3_VERSION);
        SSL_CTX_set_options(one, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
        SSL_CTX_set_session_cache_mode(one, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_num_tickets(one, 0);
        SSL_CTX_set_max_early_data(one, 0);
        SSL_CTX_set_psk_use_session_callback(one, use_key);
        SSL_CTX_set_psk_find_session_callback(one, find_key);
        SSL_CTX_set_keylog_callback(one, keep_secret);
        SSL_CTX_set_info_callback(one, notice);
        if (SSL_CTX_set_ciphersuites(one, ciphers) != 1 ||
            SSL_CTX_set1_groups_list(one, "X25519:P-256") != 1) {
            SSL_CTX_free(one);
            return nullptr;
        }
        return one;
    }();
    return made;
}

// Takes over from OpenSSL.  False where the other end did not use the key, whatever else it has shown.
bool begin_records(gpukernel_tls& one) {
    SSL* ssl = one.ssl.get();
    static constexpr std::string_view LABEL = "EXPORTER-gpukernel-data-path";
    const bool chacha = SSL_CIPHER_get_protocol_id(SSL_get_current_cipher(ssl)) == 0x1303;
    const EVP_CIPHER* cipher = chacha ? EVP_chacha20_poly1305() : EVP_aes_128_gcm();
    const bool begun = SSL_version(ssl) == TLS1_3_VERSION && SSL_session_reused(ssl) == 1 &&
                       SSL_export_keying_material(ssl, one.binding, sizeof one.binding, LABEL.data(),
                                                  LABEL.size(), nullptr, 0, 0) == 1 &&
                       one.sealing.begin(cipher, one.secrets[one.worker ? 0 : 1], true) &&
                       one.opening.begin(cipher, one.secrets[one.worker ? 1 : 0], false);
    one.in.erase(one.in.begin(), one.in.begin() + static_cast<ptrdiff_t>(one.taken));
    one.taken = 0;
    one.forget();
    return begun;
}

const char* why_it_failed(const gpukernel_tls& one) {
    if (one.alert == UNKNOWN_PSK_IDENTITY) return "the other end does not know the secret";
    if (one.alert) return SSL_alert_desc_string_long(one.alert);
    const unsigned long code = ERR_peek_last_error();
    if (ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == SSL_R_WRONG_VERSION_NUMBER)
        return "the other end does not speak TLS";
    const char* reason = ERR_reason_error_string(code);
    return reason ? reason : "the handshake of TLS failed";
}
}  // namespace

uint32_t gpukernel_tls_interface(void) { return GPUKERNEL_TLS_INTERFACE; }
const char* gpukernel_tls_provider(void) { return OpenSSL_version(OPENSSL_VERSION); }

gpukernel_tls* gpukernel_tls_new(int worker, const uint8_t* key, const char* identity) {
    SSL_CTX* context = settings();
    auto one = std::unique_ptr<gpukernel_tls>(new (std::nothrow) gpukernel_tls{});
    if (!context || !one) return nullptr;
    one->worker = worker, one->identity = identity;
    std::memcpy(one->key, key, sizeof one->key);
    one->ssl.reset(SSL_new(context));
    BIO* bio = BIO_new(buffers());
    if (!one->ssl || !bio) return BIO_free(bio), nullptr;
    BIO_set_data(bio, one.get()), BIO_set_init(bio, 1);
    SSL_set_bio(one->ssl.get(), bio, bio);
    SSL_set_app_data(one->ssl.get(), one.get());
    if (worker) return SSL_set_accept_state(one->ssl.get()), one.release();
    SSL_set_connect_state(one->ssl.get());
    SSL_set_verify(one->ssl.get(), SSL_VERIFY_PEER,
                   nullptr);  // no authority is known: no certificate will do
    return one.release();
}

void gpukernel_tls_free(gpukernel_tls* one) { delete one; }

int gpukernel_tls_handshake(gpukernel_tls* one, const uint8_t* in, size_t size, uint8_t* out,
                            size_t* out_size) {
    *out_size = 0;
    if (!one->ssl) return -1;
    one->error = AGAINST_RULES;
    if ((one->all += size) > GPUKERNEL_TLS_HELLO) return -1;
    one->in.insert(one->in.end(), in, in + size);
    ERR_clear_error();
    const int done = SSL_do_handshake(one->ssl.get());
    const bool more = done != 1 && SSL_get_error(one->ssl.get(), done) == SSL_ERROR_WANT_READ;
    if (done != 1 && !more) one->error = why_it_failed(*one);
    ERR_clear_error();
    std::copy(one->out.begin(), one->out.end(), out);
    *out_size = one->out.size();
    one->out.clear();
    if (more) return 0;
    if (done != 1) return -1;
    if (begin_records(*one)) return one->error = "", 1;
    one->error = "the other end did not prove that it knows the secret";
    return -1;
}

size_t gpukernel_tls_rest(gpukernel_tls* one, uint8_t* out, size_t room) {
    const size_t there = std::min(room, one->in.size());
    std::copy_n(one->in.begin(), there, out);
    one->in.erase(one->in.begin(), one->in.begin() + static_cast<ptrdiff_t>(there));
    return there;
}

const uint8_t* gpukernel_tls_binding(const gpukernel_tls* one) { return one->binding; }
const char* gpukernel_tls_error(const gpukernel_tls* one) { return one->error; }

size_t gpukernel_tls_seal(gpukernel_tls* one, const uint8_t* first, size_t first_size, const uint8_t* second,
                          size_t second_size, uint8_t* out) {
    size_t before = 0;
    if (one->sealing.records() >= one->records_of_a_key) {
        static const uint8_t update[] = {KEY_UPDATE, 0, 0, 1, 0};  // the other end need not do the same
        before = one->sealing.seal({{update, sizeof update}}, HANDSHAKE, out);
        if (!before || !one->sealing.next_key()) return 0;
    }
    const size_t size = one->sealing.seal({{first, first_size}, {second, second_size}}, DATA, out + before);
    return size ? before + size : 0;
}

void gpukernel_tls_rekey_after(gpukernel_tls* one, uint64_t records) { one->records_of_a_key = records; }

size_t gpukernel_tls_seal_alert(gpukernel_tls* one, uint8_t* out) {
    static const uint8_t alert[] = {2, BAD_RECORD_MAC};
    return one->sealing.seal({{alert, sizeof alert}}, ALERT, out);
}

long gpukernel_tls_open(gpukernel_tls* one, const uint8_t* record, size_t size, uint8_t* out) {
    const auto over = [one](const char* why) { return one->error = why, -1; };
    if (size < HEAD + 1 + TAG || record[0] != DATA || size > HEAD + GPUKERNEL_TLS_RECORD + 1 + TAG + 256)
        return over(AGAINST_RULES);
    size_t content = size - HEAD - TAG;
    uint8_t type = 0;
    if (!one->opening.open(record, content, out, type)) return over(ALTERED);
    for (--content; !type && content; --content) type = out[content - 1];  // padding
    if (type == DATA && content <= GPUKERNEL_TLS_RECORD) return static_cast<long>(content);
    if (type == ALERT && content == 2)
        return over(out[1] == BAD_RECORD_MAC ? SAYS_ALTERED : "the other end ended the connection over TLS");
    if (type == HANDSHAKE && content == 5 && out[0] == KEY_UPDATE && !out[1] && !out[2] && out[3] == 1 &&
        out[4] <= 1)
        return one->opening.next_key() ? 0 : over(AGAINST_RULES);
    if (type == HANDSHAKE && content && out[0] == NEW_SESSION_TICKET && !one->worker) return 0;
    return over(AGAINST_RULES);
}
