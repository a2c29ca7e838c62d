//! Memory nodes that are named by their addresses, or found in etcd.

use std::sync::Arc;

use stratann_storage::{Error, Result};

use crate::membership::EtcdOptions;

/// Seconds after which etcd forgets a memory node that does not respond.
const LEASE_S: u64 = 5;

/// Etcd, where memory nodes are to be found there: `etcd:CLUSTER@URL`, and further URLs. `None` for addresses of nodes.
///
/// # Errors
/// A text that begins so and is none.
fn etcd(addresses: &[String]) -> Result<Option<EtcdOptions>> {
    let Some((first, more)) = addresses.split_first() else { return Ok(None) };
    let Some(rest) = first.strip_prefix("etcd:") else { return Ok(None) };
    let (cluster, url) = rest.split_once('@').ok_or_else(|| {
        Error::bad_input(format!("{first:?} names no cluster; write etcd:CLUSTER@http://HOST:PORT"))
    })?;
    let endpoints = [&[url.to_string()], more].concat();
    Ok(Some(etcd_options(endpoints, cluster)))
}

/// Etcd with these URLs.
pub fn etcd_options(endpoints: Vec<String>, cluster: &str) -> EtcdOptions {
    EtcdOptions { endpoints, cluster: cluster.into(), lease_s: LEASE_S, log: Arc::new(|_| {}) }
}

/// The addresses of memory nodes: those given, or those in etcd, by number.
///
/// # Errors
/// An etcd that does not answer, or has no memory node.
pub fn found(addresses: &[String]) -> Result<Vec<String>> {
    let Some(etcd) = etcd(addresses)? else { return Ok(addresses.to_vec()) };
    let members = etcd.members()?;
    match members.memory.is_empty() {
        false => Ok(members.memory.into_values().map(|node| node.address).collect()),
        true => Err(Error::bad_input(format!(
            "no memory node of the cluster {} is in etcd at {}; start one with `stratann memory-node --etcd {} \
             --cluster {}`",
            etcd.cluster,
            etcd.endpoints.join(", "),
            etcd.endpoints.join(","),
            etcd.cluster
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_is_named_by_its_cluster_and_urls() {
        let texts = |all: &[&str]| all.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        let own = etcd(&texts(&["etcd:one@http://a:1", "http://b:2"])).unwrap().unwrap();
        assert_eq!((own.cluster.as_str(), own.endpoints), ("one", texts(&["http://a:1", "http://b:2"])));
        let nodes = texts(&["127.0.0.1:9", "shm:name"]);
        assert!(etcd(&nodes).unwrap().is_none() && etcd(&[]).unwrap().is_none());
        assert_eq!(found(&nodes).unwrap(), nodes);
        assert!(etcd(&texts(&["etcd:one"])).is_err());
    }
}
