"""From a request of the user's to what is deployed."""
