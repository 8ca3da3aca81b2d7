//! Options about tenants, and their file.

use super::{TempFile, error, launch, printed};
use crate::{PriorityClass, TenantKey, TenantLimits};

const DIGEST: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

fn of_file(name: &str, text: &str, flags: &str) -> String {
    let file = TempFile::new(name, text);
    let flags = format!("{flags} --tenant-rate-limit-config {}", file.path());
    error(&flags).replace(file.path(), "FILE")
}

#[test]
fn without_options_nothing_is_limited() {
    let limits = launch("").limits;
    let nothing = TenantLimits {
        requests_per_minute: None,
        tokens_per_minute: None,
        max_concurrent_requests: None,
        weight: 1,
        max_class: PriorityClass::Default,
    };
    assert_eq!(limits.default_limits(), nothing);
    assert_eq!(limits.limits_of_tenants(), []);
    assert_eq!(limits.tenant_header_name, "x-smg-tenant-id");
}

#[test]
fn a_tenant_has_what_its_entry_the_default_policy_and_the_flags_say_in_this_order() {
    let text = format!(
        "default_policy: {{requests_per_minute: 60, weight: 2}}\n\
         tenants:\n\
         - {{tenant_key: 'header:gold', requests_per_minute: 0, max_class: system}}\n\
         - {{tenant_key: 'auth:{DIGEST}', max_concurrent_requests: 3}}\n\
         - tenant_key: anonymous\n  weight: 1\n"
    );
    let file = TempFile::new("tenants.yaml", &text);
    let flags = format!(
        "--trust-tenant-header --priority-scheduler-enabled --tenant-requests-per-minute 5 \
         --tenant-tokens-per-minute 1000 --tenant-rate-limit-config {}",
        file.path()
    );
    let limits = launch(&flags).limits;
    let others = TenantLimits {
        requests_per_minute: Some(60),
        tokens_per_minute: Some(1000),
        max_concurrent_requests: None,
        weight: 2,
        max_class: PriorityClass::Default,
    };
    assert_eq!(limits.default_limits(), others);
    let gold = TenantLimits {
        requests_per_minute: None,
        max_class: PriorityClass::System,
        ..others
    };
    let keyed = TenantLimits {
        max_concurrent_requests: Some(3),
        ..others
    };
    let [first, second, third] = limits.limits_of_tenants().try_into().unwrap();
    assert_eq!(first, (TenantKey::Header("gold".to_owned()), gold));
    assert!(matches!(second.0, TenantKey::Auth(digest) if digest[0] == 0x2b && digest[31] == 0x5b));
    assert_eq!(second.1, keyed);
    assert_eq!(
        third,
        (TenantKey::Anonymous, TenantLimits { weight: 1, ..others })
    );
    let shown = printed(&format!("config show {flags}"), &super::nothing);
    assert!(shown.contains(&format!("\"{}\"", file.path())), "{shown}");
}

#[test]
fn what_is_wrong_in_the_file_is_named() {
    for (text, sentence) in [
        ("- 1\n", "it must hold `default_policy`, `tenants` or both"),
        (
            "limits: {}\n",
            "limits: unknown field `limits`, expected `default_policy` or `tenants`",
        ),
        (
            "default_policy: {weight: 0}\n",
            "default_policy.weight must be a whole number from 1 to 1000, got 0",
        ),
        (
            "default_policy: {tokens_per_minute: many}\n",
            "default_policy.tokens_per_minute: invalid type",
        ),
        (
            "tenants: [{weight: 1}]\n",
            "tenants[0].tenant_key must be `auth:`",
        ),
        (
            "tenants: [{tenant_key: 'ip:10.0.0.1'}]\n",
            "tenants[0].tenant_key must be `auth:`",
        ),
        (
            "tenants: [{tenant_key: 'auth:secret'}]\n",
            "tenants[0].tenant_key must be `auth:`",
        ),
        (
            "tenants: [{tenant_key: anonymous, model_rules: []}]\n",
            "unknown field `model_rules`",
        ),
        (
            "tenants: [{tenant_key: anonymous, max_class: top}]\n",
            "tenants[0].max_class: unknown variant `top`",
        ),
        (
            "tenants: [{tenant_key: anonymous}, {tenant_key: anonymous}]\n",
            "tenants[1].tenant_key names a tenant that stands above already",
        ),
    ] {
        let told = of_file("wrong.yaml", text, "");
        assert!(
            told.starts_with("invalid value 'FILE' for '--tenant-rate-limit-config <FILE>': "),
            "{told}"
        );
        assert!(told.contains(sentence), "{told}");
    }
    let gone = error("--tenant-rate-limit-config /nowhere.yaml");
    assert!(
        gone.contains("cannot read the --tenant-rate-limit-config file /nowhere.yaml"),
        "{gone}"
    );
}

#[test]
fn nothing_in_the_file_is_without_effect() {
    let header = of_file("header.yaml", "tenants: [{tenant_key: 'header:gold'}]\n", "");
    assert!(
        header.contains("`header:gold`") && header.contains("add --trust-tenant-header"),
        "{header}"
    );
    let class = of_file("class.yaml", "default_policy: {max_class: bulk}\n", "");
    assert!(class.contains("--priority-scheduler-enabled"), "{class}");
}

#[test]
fn a_header_must_be_one() {
    let told = error("--tenant-header-name x:y");
    assert_eq!(
        told,
        "--tenant-header-name must be names of HTTP headers, got `x:y`"
    );
}

#[test]
fn switches_of_others_say_what_to_use() {
    let told = error("--tenant-rate-limit-enabled");
    assert!(told.contains("--tenant-requests-per-minute"), "{told}");
    let told = error("--priority-scheduler-config x.yaml");
    assert!(told.contains("--priority-scheduler-enabled"), "{told}");
}

#[test]
fn the_example_of_the_documentation_is_right() {
    let page = include_str!("../../../../docs/limits.md");
    let example = page
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let file = TempFile::new("example.yaml", example);
    let flags = "--trust-tenant-header --priority-scheduler-enabled --tenant-rate-limit-config";
    let limits = launch(&format!("{flags} {}", file.path())).limits;
    let [search, keyed, _] = limits.limits_of_tenants().try_into().unwrap();
    assert_eq!((search.1.requests_per_minute, search.1.weight), (None, 3));
    assert_eq!(
        (search.1.max_concurrent_requests, search.1.max_class),
        (Some(4), PriorityClass::Interactive)
    );
    assert_eq!(keyed.1.max_concurrent_requests, Some(16));
}
